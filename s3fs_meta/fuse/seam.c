/*
 * Requests of the kernel that libfuse or pyfuse3 does not hand on, before libfuse sees them.
 *
 * Owns: which requests those are, the way of their answers, what is negotiated with the kernel.
 * Does not know: what they mean; a Python object has a method for each.
 *
 * pyfuse3 gives each request to libfuse's fuse_session_process_buf. This module defines a function
 * of that name, and must be loaded with RTLD_GLOBAL before pyfuse3: then the dynamic linker finds it
 * first. It answers a request, or changes it, or leaves it as it is for libfuse's own function.
 * Nothing is touched unless `install` was called before.
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

/* Younger than the headers that this is compiled with. */
#define OPCODE_TMPFILE 51 /* Linux 6.2 */
#define OPCODE_STATX 52   /* Linux 6.6 */

#define WRITE_BACK (-2) /* as in fs/waiting_room.py */

/* One process has one session, as pyfuse3 has. */
static PyObject *handlers; /* has a method for each request here; NULL: not installed */
static unsigned wanted;    /* flags of INIT to ask for, of those that the kernel offers */
static unsigned unopened;  /* of FUSE_NO_OPEN_SUPPORT and FUSE_NO_OPENDIR_SUPPORT: is not opened */
static unsigned agreed;    /* which of both the kernel offers, too */
static uint64_t init_unique; /* of INIT, until it is answered */
static long long asking = -1; /* whose the last request is, as fs/waiting_room.py has it */
static unsigned asking_process; /* and of which thread */
static int channel = -1;     /* where answers go; -1: no request has come yet */

/* One request as it comes. */
typedef struct {
    struct fuse_in_header header;
    union {
        char bytes[1];
        uint64_t fh; /* the first of many structures */
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
        fuse_log(FUSE_LOG_ERR, "an answer was refused: %s\n", strerror(errno));
}

/* libfuse answers INIT with what it knows of; what it does not know is added on the way. */
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

/* Who looks whether there is a request, and then reads it, may find none: a process that is killed
 * takes back what it has asked. Waiting here would stop everything; pyfuse3 looks again at EINTR. */
static ssize_t read_request(int fd, void *buffer, size_t size, void *Py_UNUSED(userdata))
{
    ssize_t length = read(fd, buffer, size);

    if (length < 0 && errno == EAGAIN)
        errno = EINTR;
    return length;
}

/* --- requests --------------------------------------------------------------------------------- */

/* Call a method: with the number of the request, of the inode and of who asks, and the rest. Return
 * whether the request has or will have its answer: it goes on if the method returns False. */
static int tell(const char *method, const Request *request)
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

static void begin(struct fuse_session *session, const struct fuse_init_in *init, uint64_t unique)
{
    /* Without splice_receive, so that each request is in memory. */
    static const struct fuse_custom_io io = {.writev = write_answer, .read = read_request};

    channel = fuse_session_fd(session);
    wanted &= init->flags;
    agreed = unopened & init->flags;
    if (fuse_session_custom_io(session, &io, channel) == 0) {
        fcntl(channel, F_SETFL, fcntl(channel, F_GETFL) | O_NONBLOCK);
        init_unique = unique;
    }
}

/* Return whose a request is: a user, or the kernel that writes back what users wrote. */
static long long asked_by(const Request *request)
{
    if (request->header.opcode == FUSE_WRITE && request->write.write_flags & FUSE_WRITE_CACHE)
        return WRITE_BACK;
    return request->header.uid;
}

/* Change a request, or take it and return true. */
static int taken(struct fuse_session *session, Request *request)
{
    switch (request->header.opcode) {
    case FUSE_INIT:
        begin(session, &request->init, request->header.unique);
        break;
    case FUSE_OPEN: /* ENOSYS: the kernel does not ask again, and keeps content: fuse_lowlevel.h */
        if (agreed & FUSE_NO_OPEN_SUPPORT)
            return answer(request->header.unique, ENOSYS, NULL, 0), 1;
        break;
    case FUSE_OPENDIR: /* the same, and listings */
        if (agreed & FUSE_NO_OPENDIR_SUPPORT)
            return answer(request->header.unique, ENOSYS, NULL, 0), 1;
        break;
    case FUSE_READ: /* what was not opened has no handle: its inode number is one, as ours is */
    case FUSE_READDIRPLUS:
    case FUSE_FSYNC:
    case FUSE_FSYNCDIR:
        request->fh = request->header.nodeid;
        break;
    case FUSE_WRITE: /* of others that clear these bits the handlers know enough */
        if (request->write.write_flags & FUSE_WRITE_KILL_SUIDGID)
            return tell("clear_privileges", request);
        break;
    case OPCODE_TMPFILE: /* the same as create, but for what the flags say */
        request->header.opcode = FUSE_CREATE;
        request->create.flags |= O_TMPFILE;
        break;
    case FUSE_INTERRUPT: /* pyfuse3 does not know of them, and libfuse not of what is taken here */
        return 1;
    case FUSE_LSEEK:
        return tell("lseek", request);
    case FUSE_FALLOCATE:
        return tell("fallocate", request);
    case FUSE_COPY_FILE_RANGE:
        return tell("copy_file_range", request);
    case FUSE_IOCTL:
        return tell("ioctl", request);
    case OPCODE_STATX:
        return tell("statx", request);
    }
    return 0;
}

__attribute__((visibility("default"))) void
fuse_session_process_buf(struct fuse_session *session, const struct fuse_buf *buffer)
{
    static void (*real)(struct fuse_session *, const struct fuse_buf *);
    int is_whole = !(buffer->flags & FUSE_BUF_IS_FD)
                   && buffer->size >= sizeof(struct fuse_in_header) + sizeof(struct fuse_open_in);

    if (real == NULL)
        real = (void (*)(struct fuse_session *, const struct fuse_buf *))dlsym(
            RTLD_NEXT, "fuse_session_process_buf");
    if (is_whole) {
        asking = asked_by(buffer->mem);
        asking_process = ((const Request *)buffer->mem)->header.pid;
    }
    if (handlers == NULL || !is_whole || !taken(session, buffer->mem))
        real(session, buffer);
}

/* --- the module ------------------------------------------------------------------------------- */

static PyObject *seam_install(PyObject *Py_UNUSED(module), PyObject *arguments)
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
    asking = -1;
    asking_process = 0;
    Py_RETURN_NONE;
}

static PyObject *seam_is_in_use(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyBool_FromLong(channel >= 0);
}

static PyObject *seam_asked_by(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyLong_FromLongLong(asking);
}

static PyObject *seam_asked_by_process(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyLong_FromUnsignedLong(asking_process);
}

static PyObject *seam_answer(PyObject *Py_UNUSED(module), PyObject *arguments)
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
    {"install", seam_install, METH_VARARGS,
     "Tell an object, or None, of the requests of the next session; ask the kernel for flags of\n"
     "INIT; do without opening."},
    {"is_in_use", seam_is_in_use, METH_NOARGS, "Return whether a session has begun with it."},
    {"asked_by", seam_asked_by, METH_NOARGS,
     "Return the user of the last request, -2 of what the kernel writes back."},
    {"asked_by_process", seam_asked_by_process, METH_NOARGS,
     "Return the thread of the last request, 0 if it has no number here."},
    {"answer", seam_answer, METH_VARARGS, "Answer a request: its number, an errno or 0, bytes."},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "seam",
    .m_doc = "Requests that libfuse or pyfuse3 does not hand on.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit_seam(void)
{
    return PyModule_Create(&definition);
}
