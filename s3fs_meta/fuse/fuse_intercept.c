/*
 * Intercepts the requests that libfuse or pyfuse3 does not support or serves slowly, and measures
 * the time from the receipt of a request to its answer.
 *
 * Owns: the table of these requests, sending answers, the flags negotiated with the kernel, the
 * times and the senders of requests (fuse/request_times.py reads both).
 * Does not know: the meaning of requests. A Python object has a method for each kind of request.
 *
 * pyfuse3 passes each request to libfuse's fuse_session_process_buf. This module has a function of
 * that name, and must be loaded with RTLD_GLOBAL before pyfuse3, so that the dynamic linker finds
 * this function first. The function answers a request, or passes it to libfuse's function; it
 * changes some requests before. Before `install` is called, it passes on every request unchanged.
 *
 * All functions run in the thread that serves requests. Source: linux/fuse.h.
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
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* Older kernel headers do not define these opcodes. */
#define OPCODE_TMPFILE 51 /* Linux 6.2 */
#define OPCODE_STATX 52   /* Linux 6.6 */

#define NEXT_REQUEST_NS 50000 /* time to wait for a request; a busy program sends it earlier */
#define STREAK_NS 500000      /* maximum time of serving requests before other tasks run */
#define READ_BYTES_MAX (1 << 20) /* maximum content of an answer to FUSE_READ: 256 pages */
#define LONG_BYTES_MIN (1 << 16) /* longer content is sent without the interpreter lock */

#define UNKNOWN (-1)    /* as in fs/waiting_room.py */
#define WRITE_BACK (-2) /* as in fs/waiting_room.py */

/* The hash of this file, which setup.py defines and fuse/extension.py compares. */
#ifndef SOURCE_SUM
#define SOURCE_SUM "unknown"
#endif

/* pyfuse3 has one session per process, so the state of the session is static. */
static PyObject *handlers; /* has a method for each intercepted request; NULL before install() */
static unsigned wanted;    /* flags to add to the answer to INIT, if the kernel offers them */
static unsigned unopened;  /* FUSE_NO_OPEN_SUPPORT and the like, to answer opens with ENOSYS */
static unsigned agreed;    /* the flags of `unopened` that the kernel offers */
static uint64_t init_unique; /* number of the INIT request until it is answered, then 0 */
static long long caller = UNKNOWN; /* user of the last request, UNKNOWN or WRITE_BACK */
static unsigned caller_group;      /* group of the last request */
static unsigned caller_thread;     /* thread of the last request */
static uint64_t answered; /* number of requests that this module has answered, and of FORGETs */
static int channel = -1; /* file descriptor of /dev/fuse; -1 before the INIT request */

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

/* --- times and senders of requests ------------------------------------------------------------ */

#define OPCODES 64      /* opcodes from 64 on are counted as 0, which the kernel does not use */
#define CLEAR_PRIVILEGES 0 /* a method that some writes call; the kernel does not use this opcode */
#define BOUNDS 23       /* upper bounds of the buckets; one more bucket has no bound */
#define FLIGHTS 4096    /* maximum number of measured requests without an answer; a power of two */
#define FLIGHT_PROBES 8 /* entries of `flights` that are tried for one request */
#define RECENT 16384    /* number of last requests whose senders are recorded; a power of two */
#define NO_USER 0xffffffffu /* recorded as the user of the kernel's write-back; no valid user ID */

static const uint64_t bounds_ns[BOUNDS] = {
    5000ull, 10000ull, 20000ull, 50000ull, 100000ull, 200000ull, 500000ull,
    1000000ull, 2000000ull, 5000000ull, 10000000ull, 20000000ull, 50000000ull,
    100000000ull, 200000000ull, 500000000ull, 1000000000ull, 2000000000ull, 5000000000ull,
    10000000000ull, 20000000000ull, 50000000000ull, 100000000000ull};

/* For each opcode: times and numbers of the answered requests, and the bytes read or written. */
static struct {
    uint64_t total_ns;
    uint64_t bytes;
    uint64_t counts[BOUNDS + 1];
} times[OPCODES];

/* The requests without an answer, found by their number `unique`; 0 marks a free entry. */
static struct {
    uint64_t unique;
    uint64_t begun_ns;
    unsigned opcode;
    unsigned written; /* bytes of content in the request */
} flights[FLIGHTS];

/* The senders of the last requests, in a ring. */
static struct {
    uint64_t at_ns;
    unsigned thread;
    unsigned user;
} recent[RECENT];
static uint64_t received; /* number of requests that were stored in `recent` */

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* The kernel increases the numbers of requests in steps of 2, so the lowest bit is ignored. */
static unsigned flight_of(uint64_t unique, unsigned probe)
{
    return (unsigned)((unique >> 1) + probe) & (FLIGHTS - 1);
}

/* Record the arrival of a request. INIT and requests without an answer are not recorded. */
static void begin_flight(const struct fuse_in_header *header, unsigned user, unsigned written)
{
    uint64_t begun_ns;

    switch (header->opcode) {
    case FUSE_INIT:
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
    case FUSE_NOTIFY_REPLY:
        return;
    }
    begun_ns = now_ns();
    recent[received & (RECENT - 1)].at_ns = begun_ns;
    recent[received & (RECENT - 1)].thread = header->pid;
    recent[received & (RECENT - 1)].user = user;
    received++;
    for (unsigned probe = 0; probe < FLIGHT_PROBES; probe++) {
        unsigned at = flight_of(header->unique, probe);

        if (flights[at].unique == 0) {
            flights[at].unique = header->unique;
            flights[at].begun_ns = begun_ns;
            flights[at].opcode = header->opcode < OPCODES ? header->opcode : 0;
            flights[at].written = written;
            return;
        }
    }
}

/* Record the answer to a request: the time that it took, and its bytes. */
static void end_flight(const struct fuse_out_header *out)
{
    uint64_t unique = out->unique; /* 0 for a notification, which answers no request */

    for (unsigned probe = 0; unique != 0 && probe < FLIGHT_PROBES; probe++) {
        unsigned at = flight_of(unique, probe), bucket = 0;
        uint64_t took_ns;

        if (flights[at].unique != unique)
            continue;
        took_ns = now_ns() - flights[at].begun_ns;
        while (bucket < BOUNDS && took_ns > bounds_ns[bucket])
            bucket++;
        times[flights[at].opcode].counts[bucket]++;
        times[flights[at].opcode].total_ns += took_ns;
        if (out->error == 0)
            times[flights[at].opcode].bytes += flights[at].opcode == FUSE_READ
                                                   ? out->len - (unsigned)sizeof *out
                                                   : flights[at].written;
        flights[at].unique = 0;
        return;
    }
}

/* --- answers ---------------------------------------------------------------------------------- */

static void answer(uint64_t unique, int error, const void *data, size_t length)
{
    struct fuse_out_header out = {
        .len = (unsigned)(sizeof out + length), .error = -error, .unique = unique};
    struct iovec parts[2] = {{&out, sizeof out}, {(void *)data, length}};

    answered++;
    end_flight(&out);
    if (writev(channel, parts, 2) < 0 && errno != ENOENT) /* ENOENT: the sender was killed */
        fuse_log(FUSE_LOG_ERR, "the kernel refused an answer: %s\n", strerror(errno));
}

/* Send an answer of libfuse; to the answer to INIT, add the flags that libfuse does not set. */
static ssize_t write_answer(int fd, struct iovec *parts, int count, void *Py_UNUSED(userdata))
{
    if (init_unique != 0 && count > 1
        && ((struct fuse_out_header *)parts[0].iov_base)->unique == init_unique) {
        if (((struct fuse_out_header *)parts[0].iov_base)->error == 0)
            ((struct fuse_init_out *)parts[1].iov_base)->flags |= wanted;
        init_unique = 0;
    }
    if (count > 0)
        end_flight(parts[0].iov_base);
    return writev(fd, parts, count);
}

/* Read a request without blocking. Between poll and read, the kernel may remove the request of a
 * killed process; a blocking read would then stop every task. After EINTR, pyfuse3 polls again. */
static ssize_t read_request(int fd, void *buffer, size_t size, void *Py_UNUSED(userdata))
{
    ssize_t length = read(fd, buffer, size);

    if (length < 0 && errno == EAGAIN)
        errno = EINTR;
    return length;
}

/* --- requests --------------------------------------------------------------------------------- */

/* The method for each opcode. If it is missing or returns False, libfuse gets the request. */
static const char *const methods_of_opcodes[OPCODES] = {
    [CLEAR_PRIVILEGES] = "clear_privileges", [FUSE_LOOKUP] = "lookup", [FUSE_FORGET] = "forget",
    [FUSE_GETATTR] = "getattr", [FUSE_SETATTR] = "setattr", [FUSE_SETXATTR] = "setxattr",
    [FUSE_GETXATTR] = "getxattr", [FUSE_LISTXATTR] = "listxattr", [FUSE_SYMLINK] = "symlink",
    [FUSE_READLINK] = "readlink", [FUSE_MKDIR] = "mkdir", [FUSE_RMDIR] = "rmdir",
    [FUSE_CREATE] = "create", [FUSE_LINK] = "link", [FUSE_UNLINK] = "unlink",
    [FUSE_RENAME] = "rename", [FUSE_RELEASE] = "release", [FUSE_READDIRPLUS] = "readdir",
    [FUSE_READ] = "read", [FUSE_WRITE] = "write", [FUSE_OPEN] = "open", [OPCODE_STATX] = "statx",
    [FUSE_IOCTL] = "ioctl", [FUSE_FALLOCATE] = "fallocate", [FUSE_LSEEK] = "lseek",
    [FUSE_COPY_FILE_RANGE] = "copy_file_range", [FUSE_BATCH_FORGET] = "forget_many",
};

/* Call the handler's method with the number of the request, the inode, the user and the body.
 * Return 0 if the method returned False; libfuse must then get the request. */
static int call_handler(unsigned method, const Request *request)
{
    static PyObject *names[OPCODES]; /* created at the first call; a call by string takes longer */
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *given[] = {
        handlers, PyLong_FromUnsignedLongLong(request->header.unique),
        PyLong_FromUnsignedLongLong(request->header.nodeid),
        PyLong_FromUnsignedLong(request->header.uid),
        PyBytes_FromStringAndSize(request->bytes,
                                  (Py_ssize_t)(request->header.len - sizeof request->header))};
    PyObject *result = NULL;
    if (names[method] == NULL)
        names[method] = PyUnicode_InternFromString(methods_of_opcodes[method]);
    if (names[method] && given[1] && given[2] && given[3] && given[4])
        result = PyObject_VectorcallMethod(names[method], given, 5, NULL);
    if (result == NULL) {
        PyErr_WriteUnraisable(handlers);
        answer(request->header.unique, EIO, NULL, 0);
    }
    for (unsigned at = 1; at < 5; at++)
        Py_XDECREF(given[at]);
    Py_XDECREF(result);
    PyGILState_Release(state);
    return result != Py_False; /* only the address is used, because the object may be freed */
}

/* Replace libfuse's functions for reading and writing when the kernel sends INIT. */
static void begin(struct fuse_session *session, const struct fuse_init_in *init, uint64_t unique)
{
    /* splice_receive is not set, because each request must be in memory. */
    static const struct fuse_custom_io io = {.writev = write_answer, .read = read_request};

    channel = fuse_session_fd(session);
    wanted &= init->flags;
    agreed = unopened & init->flags;
    if (fuse_session_custom_io(session, &io, channel) == 0) {
        fcntl(channel, F_SETFL, fcntl(channel, F_GETFL) | O_NONBLOCK);
        init_unique = unique;
    }
}

/* Return the user of a request, or WRITE_BACK for the write-back of dirty pages by the kernel. */
static long long caller_of(const Request *request)
{
    if (request->header.opcode == FUSE_WRITE && request->write.write_flags & FUSE_WRITE_CACHE)
        return WRITE_BACK;
    return request->header.uid;
}

/* Return true if libfuse must not get the request; otherwise the request may have been changed. */
static int intercept(struct fuse_session *session, Request *request)
{
    unsigned opcode = request->header.opcode;

    switch (opcode) {
    case FUSE_INIT:
        request->init.flags &= ~(unsigned)FUSE_ATOMIC_O_TRUNC; /* see FrequentRequests.open */
        begin(session, &request->init, request->header.unique);
        break;
    case FUSE_OPEN: /* After ENOSYS the kernel opens files without requests (fuse_lowlevel.h). */
    case FUSE_OPENDIR:
        if (agreed & (opcode == FUSE_OPEN ? FUSE_NO_OPEN_SUPPORT : FUSE_NO_OPENDIR_SUPPORT))
            return answer(request->header.unique, ENOSYS, NULL, 0), 1;
        break;
    case FUSE_READ: /* Use the inode number as the handle, which is not set without an open. */
    case FUSE_READDIRPLUS:
    case FUSE_FSYNC:
    case FUSE_FSYNCDIR:
        request->fh = request->header.nodeid;
        break;
    case FUSE_WRITE: /* A write must clear set-user-ID bits if the kernel sets this flag. */
        if (request->write.write_flags & FUSE_WRITE_KILL_SUIDGID
            && call_handler(CLEAR_PRIVILEGES, request))
            return 1;
        break;
    case FUSE_FORGET: /* has no answer */
    case FUSE_BATCH_FORGET:
        answered++;
        break;
    case OPCODE_TMPFILE: /* is passed on as CREATE with O_TMPFILE */
        request->header.opcode = FUSE_CREATE;
        request->create.flags |= O_TMPFILE;
        return 0;
    case FUSE_INTERRUPT: /* Ignored: pyfuse3 does not support interrupts. */
        return 1;
    }
    if (opcode == 0 || opcode >= OPCODES || methods_of_opcodes[opcode] == NULL)
        return 0;
    return call_handler(opcode, request);
}

/* Return whether a request has at least 8 bytes of fields, or is of a kind that may have fewer. */
static int is_complete(const struct fuse_buf *buffer)
{
    unsigned opcode = ((const Request *)buffer->mem)->header.opcode;

    return opcode == FUSE_LOOKUP || opcode == FUSE_UNLINK || opcode == FUSE_RMDIR
           || opcode == FUSE_SYMLINK || opcode == FUSE_READLINK
           || buffer->size >= sizeof(struct fuse_in_header) + sizeof(struct fuse_open_in);
}

/* Answer a request, or pass it to libfuse. Return whether this module has answered it. */
static int serve(struct fuse_session *session, const struct fuse_buf *buffer)
{
    static void (*real)(struct fuse_session *, const struct fuse_buf *);
    Request *request = buffer->mem;
    uint64_t before = answered;

    if (real == NULL)
        real = (void (*)(struct fuse_session *, const struct fuse_buf *))dlsym(
            RTLD_NEXT, "fuse_session_process_buf");
    if (!(buffer->flags & FUSE_BUF_IS_FD) && buffer->size >= sizeof request->header) {
        int complete = is_complete(buffer);

        caller = complete ? caller_of(request) : (long long)request->header.uid;
        caller_group = request->header.gid;
        caller_thread = request->header.pid;
        if (handlers != NULL) {
            int writes = complete && request->header.opcode == FUSE_WRITE;

            begin_flight(&request->header, caller == WRITE_BACK ? NO_USER : (unsigned)caller,
                         writes ? request->write.size : 0);
            if (complete && intercept(session, request))
                return answered != before;
        }
    }
    real(session, buffer);
    return 0;
}

/* Return whether a request arrives within NEXT_REQUEST_NS. */
static int arrives(void)
{
    static const struct timespec soon = {.tv_nsec = NEXT_REQUEST_NS};
    struct pollfd wanted_fd = {.fd = channel, .events = POLLIN};
    int count;
    Py_BEGIN_ALLOW_THREADS
    count = ppoll(&wanted_fd, 1, &soon, NULL);
    Py_END_ALLOW_THREADS
    return count > 0;
}

/* After a request that this module answered, serve the next one here if it arrives soon, because
 * receiving it through pyfuse3 and the gate in fuse/request_loop.py takes longer than many answers.
 * Return after a request for libfuse, because pyfuse3 then awaits its handler. Also return after
 * STREAK_NS, because other tasks must run. pyfuse3 does not read its buffer after this call. */
__attribute__((visibility("default"))) void
fuse_session_process_buf(struct fuse_session *session, const struct fuse_buf *buffer)
{
    struct fuse_buf *next = (struct fuse_buf *)buffer;
    uint64_t end_ns = 0;

    while (serve(session, next)) {
        uint64_t at_ns = now_ns();

        if (end_ns == 0)
            end_ns = at_ns + STREAK_NS;
        if (at_ns > end_ns || !arrives() || fuse_session_receive_buf(session, next) <= 0)
            return;
    }
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
    memset(flights, 0, sizeof flights);
    if (given != NULL) { /* the counts of an ended session stay readable */
        memset(times, 0, sizeof times);
        received = 0;
    }
    Py_RETURN_NONE;
}

static PyObject *numbers(const uint64_t *values, Py_ssize_t count)
{
    PyObject *found = PyTuple_New(count);

    for (Py_ssize_t at = 0; found != NULL && at < count; at++) {
        PyObject *number = PyLong_FromUnsignedLongLong(values[at]);

        if (number == NULL)
            Py_CLEAR(found);
        else
            PyTuple_SET_ITEM(found, at, number);
    }
    return found;
}

static PyObject *module_bounds_ns(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return numbers(bounds_ns, BOUNDS);
}

static PyObject *module_times(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    PyObject *found = PyList_New(0);

    for (unsigned opcode = 0; found != NULL && opcode < OPCODES; opcode++) {
        uint64_t answered = 0;
        PyObject *row;

        for (unsigned bucket = 0; bucket <= BOUNDS; bucket++)
            answered += times[opcode].counts[bucket];
        if (answered == 0)
            continue;
        row = Py_BuildValue("IKKN", opcode, (unsigned long long)times[opcode].total_ns,
                            (unsigned long long)times[opcode].bytes,
                            numbers(times[opcode].counts, BOUNDS + 1));
        if (row == NULL || PyList_Append(found, row) < 0)
            Py_CLEAR(found);
        Py_XDECREF(row);
    }
    return found;
}

static PyObject *module_waiting(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    uint64_t now = now_ns(), oldest_ns = 0;
    unsigned count = 0;

    for (unsigned at = 0; at < FLIGHTS; at++)
        if (flights[at].unique != 0) {
            count++;
            if (now - flights[at].begun_ns > oldest_ns)
                oldest_ns = now - flights[at].begun_ns;
        }
    return Py_BuildValue("IK", count, (unsigned long long)oldest_ns);
}

static PyObject *module_recent(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    uint64_t count = received < RECENT ? received : RECENT;

    return Py_BuildValue("KKy#", (unsigned long long)now_ns(), (unsigned long long)received,
                         (const char *)recent, (Py_ssize_t)(count * sizeof recent[0]));
}

static PyObject *module_is_in_use(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyBool_FromLong(channel >= 0);
}

static PyObject *module_caller(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return PyLong_FromLongLong(caller);
}

static PyObject *module_caller_ids(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none))
{
    return Py_BuildValue("II", caller_group, caller_thread);
}

static PyObject *module_answer(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    unsigned long long unique;
    int error;
    Py_buffer content;

    if (!PyArg_ParseTuple(arguments, "Kiy*:answer", &unique, &error, &content))
        return NULL;
    if (channel >= 0) { /* a session is open */
        PyThreadState *state = content.len < LONG_BYTES_MIN ? NULL : PyEval_SaveThread();
        answer(unique, error, content.buf, (size_t)content.len);
        if (state != NULL)
            PyEval_RestoreThread(state);
    }
    PyBuffer_Release(&content);
    Py_RETURN_NONE;
}

static PyObject *module_answer_from_file(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    static char content[READ_BYTES_MAX];
    unsigned long long unique;
    long long offset;
    Py_ssize_t length, count = 0;
    int fd;

    if (!PyArg_ParseTuple(arguments, "KiLn:answer_from_file", &unique, &fd, &offset, &length))
        return NULL;
    if (channel < 0 || length < 0 || length > READ_BYTES_MAX)
        Py_RETURN_FALSE;
    Py_BEGIN_ALLOW_THREADS
    while (count < length) {
        ssize_t part = pread(fd, content + count, (size_t)(length - count), offset + count);

        if (part <= 0)
            break;
        count += part;
    }
    if (count == length)
        answer(unique, 0, content, (size_t)length);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(count == length);
}

static PyMethodDef methods[] = {
    {"install", module_install, METH_VARARGS,
     "Set the object whose methods answer requests of the next session, or None; set the flags to\n"
     "add to the answer to INIT, and the kinds of open requests to answer with ENOSYS."},
    {"is_in_use", module_is_in_use, METH_NOARGS,
     "Return whether this module received the INIT request of the session."},
    {"caller", module_caller, METH_NOARGS,
     "Return the user of the last request, -2 for the kernel's write-back, -1 if unknown."},
    {"caller_ids", module_caller_ids, METH_NOARGS,
     "Return the group and the thread of the last request; the thread is 0 if it is in another\n"
     "process namespace."},
    {"answer", module_answer, METH_VARARGS,
     "Answer the request with a number; give an errno or 0, and the content."},
    {"answer_from_file", module_answer_from_file, METH_VARARGS,
     "Answer the request with a number from a file: descriptor, offset, length. Return whether the\n"
     "answer was sent; if the file is shorter or cannot be read, nothing was sent."},
    {"bounds_ns", module_bounds_ns, METH_NOARGS,
     "Return the upper bounds of the buckets of times, ascending; one more bucket has no bound."},
    {"times", module_times, METH_NOARGS,
     "Return the answered requests of the session: for each opcode the sum of their times in ns,\n"
     "the bytes that they read or wrote, and their number in each bucket."},
    {"waiting", module_waiting, METH_NOARGS,
     "Return the number of requests without an answer, and the age of the oldest one in ns."},
    {"recent", module_recent, METH_NOARGS,
     "Return the time in ns, the number of requests of the session, and for each of the last ones,\n"
     "in any order: time, thread, user."},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "fuse_intercept",
    .m_doc = "Answers the kernel's requests that libfuse or pyfuse3 does not pass on.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit_fuse_intercept(void)
{
    PyObject *module = PyModule_Create(&definition);

    if (module != NULL && PyModule_AddStringConstant(module, "SOURCE_SUM", SOURCE_SUM) < 0)
        Py_CLEAR(module);
    return module;
}
