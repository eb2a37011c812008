/*
 * Intercepts the kernel's requests that libfuse or pyfuse3 does not pass on.
 *
 * Owns: the list of these requests, sending their answers, what is negotiated with the kernel.
 * Does not know: what the requests mean; a Python object has a method for each.
 *
 * pyfuse3 gives each request to libfuse's fuse_session_process_buf. This module defines a function
 * of that name. It must be loaded with RTLD_GLOBAL before pyfuse3, so that the dynamic linker finds
 * it first. It answers a request, changes it, or passes it unchanged to libfuse's function.
 * Before `install` is called it changes nothing.
 *
 * Everything runs in the thread that serves requests. Source: linux/fuse.h.
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
#include <unistd.h>

/* The headers may be older than these. */
#define OPCODE_TMPFILE 51 /* Linux 6.2 */
#define OPCODE_STATX 52   /* Linux 6.6 */

#define UNKNOWN (-1)    /* as in fs/waiting_room.py */
#define WRITE_BACK (-2) /* the same */

/* pyfuse3 has one session per process, so the state of the session is static. */
static PyObject *handlers; /* has a method for each intercepted request; NULL: not installed */
static unsigned wanted;    /* flags to add to the answer to INIT, of those that the kernel offers */
static unsigned unopened;  /* of FUSE_NO_OPEN_SUPPORT and FUSE_NO_OPENDIR_SUPPORT: answer ENOSYS */
static unsigned agreed;    /* those of `unopened` that the kernel offers, too */
static uint64_t init_unique; /* number of the INIT request until it is answered, then 0 */
static long long caller = UNKNOWN; /* user of the last request, UNKNOWN or WRITE_BACK */
static unsigned caller_thread;     /* thread of the last request */
static int channel = -1; /* /dev/fuse; -1: no request has come yet */

/* One request as the kernel sends it. */
typedef struct {
    struct fuse_in_header header;
    union {
        char bytes[1];
        uint64_t fh; /* the first field of many structures */
        struct fuse_init_in init;
        struct fuse_create_in create;
        struct fuse_write_in write;
    };
} Request;

/* --- answers ---------------------------------------------------------------------------------- */

static void answer(uint64_t unique, int error, const void *data, size_t length)
{
    struct fuse_out_header out = {
        .len = (unsigned)(sizeof out + length), .error = -error, .unique = unique};
    struct iovec parts[2] = {{&out, sizeof out}, {(void *)data, length}};

    if (writev(channel, parts, 2) < 0 && errno != ENOENT) /* ENOENT: no process waits any more */
        fuse_log(FUSE_LOG_ERR, "the kernel refused an answer: %s\n", strerror(errno));
}

/* Send an answer of libfuse; add the wanted flags to its answer to INIT, as it knows fewer. */
static ssize_t write_answer(int fd, struct iovec *parts, int count, void *Py_UNUSED(userdata))
{
    if (init_unique != 0 && count > 1
        && ((struct fuse_out_header *)parts[0].iov_base)->unique == init_unique) {
        if (((struct fuse_out_header *)parts[0].iov_base)->error == 0)
            ((struct fuse_init_out *)parts[1].iov_base)->flags |= wanted;
        init_unique = 0;
    }
    return writev(fd, parts, count);
}

/* Read a request without blocking. The kernel withdraws the request of a killed process, also
 * between poll and read; a blocking read would stop every task. At EINTR pyfuse3 polls again. */
static ssize_t read_request(int fd, void *buffer, size_t size, void *Py_UNUSED(userdata))
{
    ssize_t length = read(fd, buffer, size);

    if (length < 0 && errno == EAGAIN)
        errno = EINTR;
    return length;
}

/* --- requests --------------------------------------------------------------------------------- */

/* Call the handler's method with the number of the request, the inode, the user and the body.
 * Return whether the request has or will have an answer; if not (the method returned False),
 * libfuse gets it. */
static int call_handler(const char *method, const Request *request)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *result = PyObject_CallMethod(
        handlers, method, "KKIy#", (unsigned long long)request->header.unique,
        (unsigned long long)request->header.nodeid, (unsigned)request->header.uid, request->bytes,
        (Py_ssize_t)(request->header.len - sizeof request->header));

    int is_taken = result != Py_False;

    if (result == NULL) {
        PyErr_WriteUnraisable(handlers);
        answer(request->header.unique, EIO, NULL, 0);
    }
    Py_XDECREF(result);
    PyGILState_Release(state);
    return is_taken;
}

/* Take over reading and answering when the kernel begins the session. */
static void begin(struct fuse_session *session, const struct fuse_init_in *init, uint64_t unique)
{
    /* No splice_receive: each request must be in memory. */
    static const struct fuse_custom_io io = {.writev = write_answer, .read = read_request};

    channel = fuse_session_fd(session);
    wanted &= init->flags;
    agreed = unopened & init->flags;
    if (fuse_session_custom_io(session, &io, channel) == 0) {
        fcntl(channel, F_SETFL, fcntl(channel, F_GETFL) | O_NONBLOCK);
        init_unique = unique;
    }
}

/* Return the user of a request, WRITE_BACK if the kernel writes back what users wrote before. */
static long long caller_of(const Request *request)
{
    if (request->header.opcode == FUSE_WRITE && request->write.write_flags & FUSE_WRITE_CACHE)
        return WRITE_BACK;
    return request->header.uid;
}

/* Return true if the request has or will have an answer; else libfuse gets it, perhaps changed. */
static int intercept(struct fuse_session *session, Request *request)
{
    switch (request->header.opcode) {
    case FUSE_INIT:
        begin(session, &request->init, request->header.unique);
        break;
    case FUSE_OPEN: /* ENOSYS: the kernel opens without requests and keeps content; fuse_lowlevel.h */
        if (agreed & FUSE_NO_OPEN_SUPPORT)
            return answer(request->header.unique, ENOSYS, NULL, 0), 1;
        break;
    case FUSE_OPENDIR: /* the same for directories and listings */
        if (agreed & FUSE_NO_OPENDIR_SUPPORT)
            return answer(request->header.unique, ENOSYS, NULL, 0), 1;
        break;
    case FUSE_READ: /* a file that was not opened has no handle; a handle is the inode's number */
    case FUSE_READDIRPLUS:
    case FUSE_FSYNC:
    case FUSE_FSYNCDIR:
        request->fh = request->header.nodeid;
        break;
    case FUSE_WRITE: /* requests of other kinds that clear set-user-ID bits show that themselves */
        if (request->write.write_flags & FUSE_WRITE_KILL_SUIDGID)
            return call_handler("clear_privileges", request);
        break;
    case OPCODE_TMPFILE: /* becomes CREATE with another flag */
        request->header.opcode = FUSE_CREATE;
        request->create.flags |= O_TMPFILE;
        break;
    case FUSE_GETXATTR: /* pyfuse3 knows these two, but answers "no such attribute" slowly */
        return call_handler("getxattr", request);
    case FUSE_LISTXATTR:
        return call_handler("listxattr", request);
    case FUSE_SETATTR: /* and takes long to convert attributes */
        return call_handler("setattr", request);
    case FUSE_INTERRUPT: /* libfuse does not know the intercepted requests, pyfuse3 no interrupts */
        return 1;
    case FUSE_LSEEK:
        return call_handler("lseek", request);
    case FUSE_FALLOCATE:
        return call_handler("fallocate", request);
    case FUSE_COPY_FILE_RANGE:
        return call_handler("copy_file_range", request);
    case FUSE_IOCTL:
        return call_handler("ioctl", request);
    case OPCODE_STATX:
        return call_handler("statx", request);
    }
    return 0;
}

__attribute__((visibility("default"))) void
fuse_session_process_buf(struct fuse_session *session, const struct fuse_buf *buffer)
{
    static void (*real)(struct fuse_session *, const struct fuse_buf *);
    int is_complete = !(buffer->flags & FUSE_BUF_IS_FD)
                      && buffer->size >= sizeof(struct fuse_in_header) + sizeof(struct fuse_open_in);

    if (real == NULL)
        real = (void (*)(struct fuse_session *, const struct fuse_buf *))dlsym(
            RTLD_NEXT, "fuse_session_process_buf");
    if (is_complete) {
        caller = caller_of(buffer->mem);
        caller_thread = ((const Request *)buffer->mem)->header.pid;
    }
    if (handlers == NULL || !is_complete || !intercept(session, buffer->mem))
        real(session, buffer);
}

/* --- the module ------------------------------------------------------------------------------- */

static PyObject *module_install(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *given;
    unsigned flags, without;

    if (!PyArg_ParseTuple(arguments, "OII:install", &given, &flags, &without))
        return NULL;
    if (given == Py_None)
        given = NULL;
    Py_XINCREF(given);
    Py_XSETREF(handlers, given);
    wanted = flags;
    unopened = without;
    agreed = 0;
    init_unique = 0;
    channel = -1;
    caller = UNKNOWN;
    caller_thread = 0;
    Py_RETURN_NONE;
}

static PyObject *module_is_in_use(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyBool_FromLong(channel >= 0);
}

static PyObject *module_caller(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyLong_FromLongLong(caller);
}

static PyObject *module_caller_thread(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyLong_FromUnsignedLong(caller_thread);
}

static PyObject *module_answer(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    unsigned long long unique;
    int error;
    const char *bytes;
    Py_ssize_t length;

    if (!PyArg_ParseTuple(arguments, "Kiy#:answer", &unique, &error, &bytes, &length))
        return NULL;
    if (channel >= 0) /* there is a session */
        answer(unique, error, bytes, (size_t)length);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"install", module_install, METH_VARARGS,
     "Call the methods of an object, or none, for the requests of the next session; ask the kernel\n"
     "for flags of INIT; answer ENOSYS to opening."},
    {"is_in_use", module_is_in_use, METH_NOARGS, "Return whether the session's INIT came here."},
    {"caller", module_caller, METH_NOARGS,
     "Return the user of the last request, -2 for the kernel's write-back, -1 if unknown."},
    {"caller_thread", module_caller_thread, METH_NOARGS,
     "Return the thread of the last request, 0 if it is not in this process's namespace."},
    {"answer", module_answer, METH_VARARGS, "Answer a request: its number, an errno or 0, bytes."},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "fuse_intercept",
    .m_doc = "Requests that libfuse or pyfuse3 does not pass on.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit_fuse_intercept(void)
{
    return PyModule_Create(&definition);
}
