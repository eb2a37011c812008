/*
 * Operations that pyfuse3 does not hand on, added to its table on the way to libfuse.
 *
 * Owns: the C functions of these operations, their answers, what is negotiated with the kernel.
 * Does not know: what the operations mean; a Python object with a method for each is told of them.
 *
 * pyfuse3 gives its table of operations to libfuse's fuse_session_new. This module defines a
 * function of that name (and of the names that it has in libfuse 3.17 and later), and must be loaded
 * with RTLD_GLOBAL before pyfuse3: then the dynamic linker finds it first. It copies the table, adds
 * to it, and calls libfuse's own. Nothing of it is used unless `install` was called before.
 *
 * Everything runs in the thread that serves requests, with the interpreter lock held, because
 * pyfuse3 holds it while libfuse decodes a request.
 */

#define PY_SSIZE_T_CLEAN
#define FUSE_USE_VERSION 35
#define _GNU_SOURCE

#include <Python.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_log.h>
#include <fuse_lowlevel.h>
#include <linux/fuse.h>
#include <string.h>
#include <sys/uio.h>

#undef fuse_session_new

#define EXPORTED __attribute__((visibility("default")))

#define OPCODE_TMPFILE 51 /* Linux 6.2 */
#define OPCODE_STATX 52   /* Linux 6.6 */

typedef void (*process_buf)(struct fuse_session *, const struct fuse_buf *);
typedef struct fuse_session *(*new_session)(struct fuse_args *, const struct fuse_lowlevel_ops *,
                                            size_t, void *);
struct libfuse_version;
typedef struct fuse_session *(*new_session_versioned)(struct fuse_args *,
                                                      const struct fuse_lowlevel_ops *, size_t,
                                                      struct libfuse_version *, void *);

/* One process has one session, as pyfuse3 has. */
static PyObject *handlers;              /* has a method for each operation here; NULL: not installed */
static unsigned long long wanted;       /* capabilities to ask for, if the kernel has them */
static unsigned unopened;               /* FUSE_CAP_NO_OPEN_SUPPORT: files are not opened, either */
static unsigned capable;                /* what the kernel has */
static int is_in_use;                   /* libfuse has our table */
static struct fuse_lowlevel_ops pyfuse3_ops;
static struct fuse_lowlevel_ops ops;

/* --- one request, as Python sees it ----------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    fuse_req_t req; /* NULL: answered */
} Request;

static PyTypeObject *request_type;

static PyObject *answered(Request *self, int result)
{
    self->req = NULL;
    if (result != 0 && result != -ENOENT) /* ENOENT: nobody waits for it any more */
        fuse_log(FUSE_LOG_ERR, "an answer was refused: %s\n", strerror(-result));
    Py_RETURN_NONE;
}

static int is_open(Request *self)
{
    if (self->req == NULL)
        PyErr_SetString(PyExc_RuntimeError, "the request has its answer");
    return self->req != NULL;
}

#define ANSWERS_NUMBER(method, reply, type)                                                        \
    static PyObject *method(Request *self, PyObject *argument)                                     \
    {                                                                                              \
        long long number = PyLong_AsLongLong(argument);                                            \
        if ((number == -1 && PyErr_Occurred()) || !is_open(self))                                  \
            return NULL;                                                                           \
        return answered(self, reply(self->req, (type)number));                                     \
    }

ANSWERS_NUMBER(request_error, fuse_reply_err, int)
ANSWERS_NUMBER(request_position, fuse_reply_lseek, off_t)
ANSWERS_NUMBER(request_count, fuse_reply_write, size_t)

static PyObject *request_bytes(Request *self, PyObject *argument)
{
    char *bytes;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(argument, &bytes, &length) < 0 || !is_open(self))
        return NULL;
    return answered(self, fuse_reply_ioctl(self->req, 0, bytes, (size_t)length));
}

static void drop(Request *self)
{
    if (self->req != NULL)
        fuse_reply_err(self->req, EIO);
    self->req = NULL;
}

static PyObject *request_drop(Request *self, PyObject *Py_UNUSED(none))
{
    drop(self);
    Py_RETURN_NONE;
}

static void request_dealloc(Request *self)
{
    PyTypeObject *type = Py_TYPE(self);
    drop(self);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyMethodDef request_methods[] = {
    {"error", (PyCFunction)request_error, METH_O, "Answer an errno; 0: success."},
    {"position", (PyCFunction)request_position, METH_O, "Answer lseek with an offset."},
    {"count", (PyCFunction)request_count, METH_O, "Answer copy_file_range with a number of bytes."},
    {"bytes", (PyCFunction)request_bytes, METH_O, "Answer ioctl with what it gives."},
    {"drop", (PyCFunction)request_drop, METH_NOARGS, "Answer EIO unless there was an answer."},
    {NULL},
};

static PyType_Slot request_slots[] = {
    {Py_tp_dealloc, request_dealloc},
    {Py_tp_methods, request_methods},
    {Py_tp_doc, "One request of the kernel: is answered once; EIO if it is dropped."},
    {0},
};

static PyType_Spec request_spec = {
    .name = "s3fs_meta.fuse.seam.Request",
    .basicsize = sizeof(Request),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = request_slots,
};

static PyObject *taken(fuse_req_t req)
{
    Request *request = PyObject_New(Request, request_type);
    if (request == NULL)
        fuse_reply_err(req, ENOMEM);
    else
        request->req = req;
    return (PyObject *)request;
}

static void told(PyObject *result)
{
    if (result == NULL)
        PyErr_WriteUnraisable(handlers);
    Py_XDECREF(result);
}

/* Call the method of an operation with the request and what *format* describes. */
#define TELL(req, method, format, ...)                                                             \
    do {                                                                                           \
        PyGILState_STATE state = PyGILState_Ensure();                                              \
        PyObject *self = taken(req);                                                               \
        told(self ? PyObject_CallMethod(handlers, method, "O" format, self, __VA_ARGS__) : NULL);  \
        Py_XDECREF(self);                                                                          \
        PyGILState_Release(state);                                                                 \
    } while (0)

/* --- operations ------------------------------------------------------------------------------- */

static void seam_init(void *userdata, struct fuse_conn_info *conn)
{
    pyfuse3_ops.init(userdata, conn);
    conn->want |= (unsigned)wanted & conn->capable;
    capable = conn->capable;
}

static void seam_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
                       struct fuse_file_info *Py_UNUSED(fi))
{
    TELL(req, "lseek", "KLi", (unsigned long long)ino, (long long)off, whence);
}

static void seam_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                           struct fuse_file_info *Py_UNUSED(fi))
{
    TELL(req, "fallocate", "KiLL", (unsigned long long)ino, mode, (long long)offset,
         (long long)length);
}

static void seam_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
                                 struct fuse_file_info *Py_UNUSED(fi_in), fuse_ino_t ino_out,
                                 off_t off_out, struct fuse_file_info *Py_UNUSED(fi_out),
                                 size_t len, int Py_UNUSED(flags))
{
    TELL(req, "copy_file_range", "KLKLn", (unsigned long long)ino_in, (long long)off_in,
         (unsigned long long)ino_out, (long long)off_out, (Py_ssize_t)len);
}

static void seam_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned command, void *Py_UNUSED(arg),
                       struct fuse_file_info *Py_UNUSED(fi), unsigned Py_UNUSED(flags),
                       const void *in_buf, size_t in_bufsz, size_t Py_UNUSED(out_bufsz))
{
    TELL(req, "ioctl", "KIy#I", (unsigned long long)ino, command, in_bufsz ? in_buf : "",
         (Py_ssize_t)in_bufsz, (unsigned)fuse_req_ctx(req)->uid);
}

/* ENOSYS: the kernel does not ask again, and keeps content and listings: fuse_lowlevel.h. */
#define OPENED(operation, may_be_left_out)                                                         \
    static void seam_##operation(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)        \
    {                                                                                              \
        if (may_be_left_out)                                                                       \
            fuse_reply_err(req, ENOSYS);                                                           \
        else                                                                                       \
            pyfuse3_ops.operation(req, ino, fi);                                                   \
    }

/* What was not opened has no handle: its inode number is put there, as ours is. */
#define READS(operation)                                                                           \
    static void seam_##operation(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,           \
                                 struct fuse_file_info *fi)                                        \
    {                                                                                              \
        fi->fh = ino;                                                                              \
        pyfuse3_ops.operation(req, ino, size, off, fi);                                            \
    }

#define SYNCS(operation)                                                                           \
    static void seam_##operation(fuse_req_t req, fuse_ino_t ino, int datasync,                     \
                                 struct fuse_file_info *fi)                                        \
    {                                                                                              \
        fi->fh = ino;                                                                              \
        pyfuse3_ops.operation(req, ino, datasync, fi);                                             \
    }

OPENED(open, (unopened & capable) != 0)
OPENED(opendir, (capable & FUSE_CAP_NO_OPENDIR_SUPPORT) != 0)
READS(read)
READS(readdirplus)
SYNCS(fsync)
SYNCS(fsyncdir)

/* --- between pyfuse3 and libfuse --------------------------------------------------------------- */

static const struct fuse_lowlevel_ops *added_to(const struct fuse_lowlevel_ops *given, size_t size)
{
    if (size > sizeof ops)
        size = sizeof ops; /* operations that we do not know, and pyfuse3 leaves empty */
    memset(&pyfuse3_ops, 0, sizeof pyfuse3_ops);
    memcpy(&pyfuse3_ops, given, size);
    ops = pyfuse3_ops;
    ops.init = seam_init;
    ops.lseek = seam_lseek;
    ops.fallocate = seam_fallocate;
    ops.copy_file_range = seam_copy_file_range;
    ops.ioctl = seam_ioctl;
    ops.open = seam_open;
    ops.opendir = seam_opendir;
    ops.read = seam_read;
    ops.readdirplus = seam_readdirplus;
    ops.fsync = seam_fsync;
    ops.fsyncdir = seam_fsyncdir;
    is_in_use = 1;
    return &ops;
}

EXPORTED struct fuse_session *fuse_session_new(struct fuse_args *args,
                                               const struct fuse_lowlevel_ops *op, size_t op_size,
                                               void *userdata)
{
    new_session real = (new_session)dlsym(RTLD_NEXT, "fuse_session_new");
    if (real == NULL)
        return NULL;
    if (handlers == NULL)
        return real(args, op, op_size, userdata);
    return real(args, added_to(op, op_size), sizeof ops, userdata);
}

/* libfuse 3.17 and later. The names are those of its own headers. */
#define VERSIONED(name)                                                                            \
    EXPORTED struct fuse_session *name(struct fuse_args *args, const struct fuse_lowlevel_ops *op, \
                                       size_t op_size, struct libfuse_version *version,            \
                                       void *userdata)                                             \
    {                                                                                              \
        new_session_versioned real = (new_session_versioned)dlsym(RTLD_NEXT, #name);               \
        if (real == NULL)                                                                          \
            return NULL;                                                                           \
        if (handlers == NULL)                                                                      \
            return real(args, op, op_size, version, userdata);                                     \
        return real(args, added_to(op, op_size), sizeof ops, version, userdata);                   \
    }

#undef _fuse_session_new
VERSIONED(_fuse_session_new)
VERSIONED(_fuse_session_new_317)

/* --- requests that libfuse does not know ------------------------------------------------------ */

/* Answer statx: what the method returns is bytes as the kernel wants them, or an errno. */
static void answer_statx(struct fuse_session *se, const struct fuse_in_header *header)
{
    PyGILState_STATE state = PyGILState_Ensure();
    struct fuse_out_header out = {.len = sizeof out, .error = -EIO, .unique = header->unique};
    struct iovec parts[2] = {{&out, sizeof out}, {NULL, 0}};
    PyObject *answer = PyObject_CallMethod(handlers, "statx", "K", header->nodeid);

    if (answer != NULL && PyBytes_Check(answer)) {
        parts[1].iov_base = PyBytes_AS_STRING(answer);
        parts[1].iov_len = (size_t)PyBytes_GET_SIZE(answer);
        out.len += (unsigned)parts[1].iov_len;
        out.error = 0;
    } else if (answer != NULL)
        out.error = -(int)PyLong_AsLong(answer);
    if (writev(fuse_session_fd(se), parts, 2) < 0 && errno != ENOENT)
        fuse_log(FUSE_LOG_ERR, "an answer was refused: %s\n", strerror(errno));
    told(answer);
    PyGILState_Release(state);
}

/* libfuse's own, but for requests that are ours, or much like one that it knows. */
EXPORTED void fuse_session_process_buf(struct fuse_session *se, const struct fuse_buf *buf)
{
    static process_buf real;
    struct {
        struct fuse_in_header header;
        struct fuse_create_in create;
    } *request = buf->mem;

    if (real == NULL)
        real = (process_buf)dlsym(RTLD_NEXT, "fuse_session_process_buf");
    if (is_in_use && !(buf->flags & FUSE_BUF_IS_FD) && buf->size >= sizeof *request) {
        if (request->header.opcode == OPCODE_STATX) {
            answer_statx(se, &request->header);
            return;
        }
        if (request->header.opcode == OPCODE_TMPFILE) {
            request->header.opcode = FUSE_CREATE; /* the same, but for what the flags say */
            request->create.flags |= O_TMPFILE;
        }
    }
    real(se, buf);
}

/* --- the module ------------------------------------------------------------------------------- */

static PyObject *seam_install(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *given;
    unsigned long long asked;
    int without;

    if (!PyArg_ParseTuple(arguments, "OKp:install", &given, &asked, &without))
        return NULL;
    if (given == Py_None)
        given = NULL;
    Py_XINCREF(given);
    Py_XSETREF(handlers, given);
    wanted = asked;
    unopened = without ? FUSE_CAP_NO_OPEN_SUPPORT : 0;
    is_in_use = 0;
    Py_RETURN_NONE;
}

static PyObject *seam_is_in_use(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyBool_FromLong(is_in_use);
}

static PyMethodDef methods[] = {
    {"install", seam_install, METH_VARARGS,
     "Let the next session have the operations of an object, or None; ask for capabilities; leave"
     " out opening files, or not."},
    {"is_in_use", seam_is_in_use, METH_NOARGS, "Return whether libfuse has the operations."},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "seam",
    .m_doc = "Operations that pyfuse3 does not hand on.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit_seam(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    request_type = (PyTypeObject *)PyType_FromSpec(&request_spec);
    if (request_type == NULL || PyModule_AddObjectRef(module, "Request", (PyObject *)request_type) < 0)
        return NULL;
    PyModule_AddIntConstant(module, "CACHE_SYMLINKS", FUSE_CAP_CACHE_SYMLINKS);
    PyModule_AddIntConstant(module, "DONT_MASK", FUSE_CAP_DONT_MASK);
    PyModule_AddIntConstant(module, "PARALLEL_DIROPS", FUSE_CAP_PARALLEL_DIROPS);
    return module;
}
