/* A file system that fails when told to: preloaded, it counts what a process changes below one directory.
 *
 * Armed, it kills the process before operation n, fails operation n (once, or from n on), or cuts writes
 * short. It can also log every operation with its data, so that the state of the disk after a power loss
 * can be worked out at any point. Forced writes can be made free: neither a kill nor the log needs them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum mode { NONE, KILL, TORN_KILL, ONCE, LASTING, SHORT };
enum kind { CREATE = 1, WRITE, TRUNCATE, SYNC, RENAME, UNLINK, MKDIR, MARK };

static char watched[PATH_MAX];
static enum mode mode;
static long at, seen;
static int error_number, log_fd = -1, free_sync;

void faults_watch(const char *directory) { snprintf(watched, sizeof watched, "%s", directory); seen = 0; }
void faults_arm(int how, long n, int err) { mode = how; at = n; error_number = err; seen = 0; }
void faults_disarm(void) { mode = NONE; }
long faults_seen(void) { return seen; }
void faults_log(int fd) { log_fd = fd; }
void faults_free_sync(int yes) { free_sync = yes; }

struct record { int32_t kind, error; int64_t offset; uint32_t first, second; };

static void put(int kind, int err, int64_t offset, const char *path, const void *more, size_t length) {
    if (log_fd < 0) return;
    struct record r = {kind, err, offset, strlen(path), length};
    struct iovec parts[] = {{&r, sizeof r}, {(void *)path, r.first}, {(void *)more, length}};
    syscall(SYS_writev, log_fd, parts, 3);
}

void faults_mark(long what) { put(MARK, 0, what, "", NULL, 0); }

static void die(void) {
    syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
    for (;;) pause();
}

static int is_watched(const char *path) {
    size_t n = strlen(watched);
    return n && !strncmp(path, watched, n) && (path[n] == '/' || !path[n]);
}

static int of_fd(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = watched[0] ? readlink(link, path, PATH_MAX - 1) : -1;
    path[n < 0 ? 0 : n] = 0;
    return n > 0 && is_watched(path);
}

static int of_name(int dir, const char *name, char *path) {
    char base[PATH_MAX] = "";
    path[0] = 0;
    if (!watched[0]) return 0;
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else {
        if (dir == AT_FDCWD) { if (!getcwd(base, sizeof base)) return 0; }
        else of_fd(dir, base);
        if (snprintf(path, PATH_MAX, "%s/%s", base, name) >= PATH_MAX) return 0;
    }
    return is_watched(path);
}

/* Count one operation; nonzero where it must fail, with errno set. Threads may be at it together. */
static int faulty(void) {
    long now = __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST);
    if (mode == KILL && now == at) die();
    if ((mode == ONCE && now == at) || (mode == LASTING && now >= at)) { errno = error_number; return 1; }
    return 0;
}

static size_t cut(size_t length) {
    return mode == SHORT && seen >= at && length > 1 ? (length + 1) / 2 : length;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static ssize_t write_at(int fd, const void *data, size_t length, off_t offset, int positioned) {
    static ssize_t (*plain)(int, const void *, size_t);
    static ssize_t (*there)(int, const void *, size_t, off_t);
    if (!plain) { plain = NEXT(write); there = NEXT(pwrite64); }
    char path[PATH_MAX];
    if (!of_fd(fd, path)) return positioned ? there(fd, data, length, offset) : plain(fd, data, length);
    if (!positioned) offset = lseek(fd, 0, SEEK_CUR);
    int torn = mode == TORN_KILL && seen + 1 == at;
    if (faulty()) { put(WRITE, errno, offset, path, NULL, 0); return -1; }
    length = torn ? length / 2 : cut(length);
    ssize_t done = positioned ? there(fd, data, length, offset) : plain(fd, data, length);
    if (torn) die();
    if (done >= 0) put(WRITE, 0, offset, path, data, done);
    return done;
}

ssize_t write(int fd, const void *data, size_t length) { return write_at(fd, data, length, 0, 0); }
ssize_t pwrite(int fd, const void *data, size_t length, off_t to) { return write_at(fd, data, length, to, 1); }
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t to) { return write_at(fd, data, length, to, 1); }

/* The operations whose outcome is an int: count, maybe fail, do, log. */
#define DO(kind, path, offset, more, call)                                   \
    do {                                                                     \
        int result_ = faulty() ? -1 : (call);                                \
        int kept_ = errno;                                                   \
        put(kind, result_ < 0 ? kept_ : 0, offset, path, more, strlen(more)); \
        errno = kept_;                                                       \
        return result_;                                                      \
    } while (0)

int fsync(int fd) {
    static int (*next)(int);
    if (!next) next = NEXT(fsync);
    char path[PATH_MAX];
    if (!of_fd(fd, path)) return next(fd);
    DO(SYNC, path, 0, "", free_sync ? 0 : next(fd));
}

int fdatasync(int fd) {
    static int (*next)(int);
    if (!next) next = NEXT(fdatasync);
    char path[PATH_MAX];
    if (!of_fd(fd, path)) return next(fd);
    DO(SYNC, path, 0, "", free_sync ? 0 : next(fd));
}

static int truncate_to(int fd, off_t length) {
    static int (*next)(int, off_t);
    if (!next) next = NEXT(ftruncate64);
    char path[PATH_MAX];
    if (!of_fd(fd, path)) return next(fd, length);
    DO(TRUNCATE, path, length, "", next(fd, length));
}

int ftruncate(int fd, off_t length) { return truncate_to(fd, length); }
int ftruncate64(int fd, off64_t length) { return truncate_to(fd, length); }

int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    static int (*next)(int, const char *, int, const char *);
    if (!next) next = NEXT(renameat);
    char path[PATH_MAX], goal[PATH_MAX];
    int ours = of_name(to_dir, to, goal);
    if (!(of_name(from_dir, from, path) | ours)) return next(from_dir, from, to_dir, to);
    DO(RENAME, path, 0, goal, next(from_dir, from, to_dir, to));
}

int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int unlinkat(int dir, const char *name, int flags) {
    static int (*next)(int, const char *, int);
    if (!next) next = NEXT(unlinkat);
    char path[PATH_MAX];
    if (!of_name(dir, name, path)) return next(dir, name, flags);
    DO(UNLINK, path, 0, "", next(dir, name, flags));
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int dir, const char *name, mode_t permissions) {
    static int (*next)(int, const char *, mode_t);
    if (!next) next = NEXT(mkdirat);
    char path[PATH_MAX];
    if (!of_name(dir, name, path)) return next(dir, name, permissions);
    DO(MKDIR, path, 0, "", next(dir, name, permissions));
}

int mkdir(const char *name, mode_t permissions) { return mkdirat(AT_FDCWD, name, permissions); }

static int open_at(int dir, const char *name, int flags, mode_t permissions) {
    static int (*next)(int, const char *, int, ...);
    if (!next) next = NEXT(openat64);
    char path[PATH_MAX];
    if (!(flags & (O_CREAT | O_TRUNC)) || !of_name(dir, name, path)) return next(dir, name, flags, permissions);
    DO(CREATE, path, (flags & O_TRUNC) != 0, "", next(dir, name, flags, permissions));
}

#define PERMISSIONS(last)                              \
    mode_t permissions = 0;                            \
    if (flags & (O_CREAT | O_TMPFILE)) {               \
        va_list rest;                                  \
        va_start(rest, last);                          \
        permissions = va_arg(rest, mode_t);            \
        va_end(rest);                                  \
    }

int open(const char *name, int flags, ...) { PERMISSIONS(flags) return open_at(AT_FDCWD, name, flags, permissions); }
int open64(const char *name, int flags, ...) { PERMISSIONS(flags) return open_at(AT_FDCWD, name, flags, permissions); }
int openat(int dir, const char *name, int flags, ...) { PERMISSIONS(flags) return open_at(dir, name, flags, permissions); }
int openat64(int dir, const char *name, int flags, ...) { PERMISSIONS(flags) return open_at(dir, name, flags, permissions); }
