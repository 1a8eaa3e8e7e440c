/* Records, in order and with their data, all changes that a process makes to files in one folder.
 *
 *   LD_PRELOAD=recorder.so RECORD_ROOT=/folder RECORD_LOG=/elsewhere/log PROGRAM
 *
 * Each record of the log is a `struct head`, the path, the second path and the data.  A lock is
 * held around the call and its record, so the log has the order in which the kernel saw them.
 * Changes through shared memory are invisible and are recorded as such (MAPPED): the reader must
 * then reject the log.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, WRITE, TRUNCATE, SYNC, RENAME, UNLINK, MKDIR, LINK, MAPPED };

struct head {
    uint32_t op, path_length, other_length, data_length;
    uint64_t inode;
    int64_t number; /* the offset of a write, the length of a truncation, the flags of an open */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;
static char root[PATH_MAX];

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "recorder: %s is missing in libc\n", name);
        abort();
    }
    return found;
}

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("RECORD_ROOT"), *log = getenv("RECORD_LOG");
    if (!folder || !log || !realpath(folder, root)) return;
    int fd = REAL(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) abort();
    log_fd = fcntl(fd, F_DUPFD_CLOEXEC, 900); /* out of the way of low numbers */
    REAL(close)(fd);
    if (log_fd < 0) abort();
}

static int inside(const char *path) {
    size_t length = strlen(root);
    return log_fd >= 0 && length && !strncmp(path, root, length) &&
           (path[length] == '/' || !path[length]);
}

/* The absolute path, with the folder resolved but not the last name; 0 when it is not in root. */
static int locate(int folder, const char *path, char *out) {
    char whole[2 * PATH_MAX], parent[PATH_MAX];
    if (log_fd < 0 || !path) return 0;
    if (path[0] == '/') {
        snprintf(whole, sizeof whole, "%s", path);
    } else {
        char from[PATH_MAX] = "";
        if (folder == AT_FDCWD) {
            if (!getcwd(from, sizeof from)) return 0;
        } else {
            char link[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t n = readlink(link, from, sizeof from - 1);
            if (n < 0) return 0;
            from[n] = 0;
        }
        snprintf(whole, sizeof whole, "%s/%s", from, path);
    }
    char *slash = strrchr(whole, '/');
    if (!slash || !slash[1]) return 0;
    *slash = 0;
    if (!realpath(whole[0] ? whole : "/", parent)) return 0;
    if (snprintf(out, PATH_MAX, "%s/%s", parent, slash + 1) >= PATH_MAX) return 0;
    return inside(out);
}

static int ours(int fd) {
    char link[64], path[PATH_MAX];
    if (log_fd < 0 || fd < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return inside(path);
}

static uint64_t inode_of(int fd) {
    struct stat about;
    return fstat(fd, &about) ? 0 : about.st_ino;
}

static void put(const void *data, size_t length) {
    const char *at = data;
    while (length) {
        ssize_t n = REAL(write)(log_fd, at, length);
        if (n <= 0) abort(); /* an incomplete log is useless */
        at += n;
        length -= (size_t)n;
    }
}

static void note(int op, uint64_t inode, int64_t number, const char *path, const char *other,
                 const void *data, size_t length) {
    int kept = errno;
    struct head head = {(uint32_t)op, path ? (uint32_t)strlen(path) : 0,
                        other ? (uint32_t)strlen(other) : 0, (uint32_t)length, inode, number};
    put(&head, sizeof head);
    if (path) put(path, head.path_length);
    if (other) put(other, head.other_length);
    if (length) put(data, length);
    errno = kept;
}

/* -- opening ------------------------------------------------------------------------------- */

static int opened(int fd, const char *path, int flags) {
    if (fd >= 0 && (flags & (O_CREAT | O_TRUNC | O_ACCMODE)))
        note(OPEN, inode_of(fd), flags, path, 0, 0, 0);
    return fd;
}

#define MODE                                         \
    mode_t mode = 0;                                 \
    if (flags & (O_CREAT | __O_TMPFILE)) {           \
        va_list rest;                                \
        va_start(rest, flags);                       \
        mode = va_arg(rest, mode_t);                 \
        va_end(rest);                                \
    }

#define OPENING(folder, call)                        \
    char at[PATH_MAX];                               \
    if (!locate(folder, path, at)) return call;      \
    pthread_mutex_lock(&lock);                       \
    int fd = opened(call, at, flags);                \
    pthread_mutex_unlock(&lock);                     \
    return fd;

int open(const char *path, int flags, ...) {
    MODE OPENING(AT_FDCWD, REAL(open)(path, flags, mode))
}
int open64(const char *path, int flags, ...) {
    MODE OPENING(AT_FDCWD, REAL(open64)(path, flags, mode))
}
int openat(int folder, const char *path, int flags, ...) {
    MODE OPENING(folder, REAL(openat)(folder, path, flags, mode))
}
int openat64(int folder, const char *path, int flags, ...) {
    MODE OPENING(folder, REAL(openat64)(folder, path, flags, mode))
}
int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

/* -- contents ------------------------------------------------------------------------------ */

#define WRITING(call, data, where)                                                    \
    if (!ours(fd)) return call;                                                       \
    pthread_mutex_lock(&lock);                                                        \
    ssize_t n = call;                                                                 \
    if (n > 0) note(WRITE, inode_of(fd), where, 0, 0, data, (size_t)n);               \
    pthread_mutex_unlock(&lock);                                                      \
    return n;

/* The offset of a write without one: the position is now at its end, even with O_APPEND. */
#define BEHIND (lseek(fd, 0, SEEK_CUR) - n)

ssize_t write(int fd, const void *data, size_t length) {
    WRITING(REAL(write)(fd, data, length), data, BEHIND)
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    WRITING(REAL(pwrite)(fd, data, length, offset), data, offset)
}
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    WRITING(REAL(pwrite64)(fd, data, length, offset), data, offset)
}

/* Data of calls that do not pass a single buffer is read back from the file. */
#define READING_BACK(target, call, where)                                             \
    if (!ours(target)) return call;                                                   \
    pthread_mutex_lock(&lock);                                                        \
    ssize_t n = call;                                                                 \
    if (n > 0) {                                                                      \
        char path[64], *data = malloc((size_t)n);                                     \
        snprintf(path, sizeof path, "/proc/self/fd/%d", target);                      \
        int again = REAL(open)(path, O_RDONLY | O_CLOEXEC);                           \
        int64_t offset = where;                                                       \
        if (again < 0 || !data || pread(again, data, (size_t)n, offset) != n) abort(); \
        note(WRITE, inode_of(target), offset, 0, 0, data, (size_t)n);                 \
        REAL(close)(again);                                                           \
        free(data);                                                                   \
    }                                                                                 \
    pthread_mutex_unlock(&lock);                                                      \
    return n;

ssize_t writev(int fd, const struct iovec *parts, int count) {
    READING_BACK(fd, REAL(writev)(fd, parts, count), BEHIND)
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    READING_BACK(fd, REAL(pwritev)(fd, parts, count, offset), offset)
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    READING_BACK(fd, REAL(pwritev64)(fd, parts, count, offset), offset)
}
ssize_t sendfile(int fd, int from, off_t *offset, size_t length) {
    READING_BACK(fd, REAL(sendfile)(fd, from, offset, length), BEHIND)
}
ssize_t sendfile64(int fd, int from, off64_t *offset, size_t length) {
    READING_BACK(fd, REAL(sendfile64)(fd, from, offset, length), BEHIND)
}
ssize_t copy_file_range(int from, off64_t *offset, int fd, off64_t *to, size_t length,
                        unsigned flags) {
    READING_BACK(fd, REAL(copy_file_range)(from, offset, fd, to, length, flags),
                 to ? *to - n : BEHIND)
}

#define CUTTING(test, call, inode, length, path)                                      \
    if (!(test)) return call;                                                         \
    pthread_mutex_lock(&lock);                                                        \
    int failed = call;                                                                \
    if (!failed) note(TRUNCATE, inode, length, path, 0, 0, 0);                        \
    pthread_mutex_unlock(&lock);                                                      \
    return failed;

int ftruncate(int fd, off_t length) {
    CUTTING(ours(fd), REAL(ftruncate)(fd, length), inode_of(fd), length, 0)
}
int ftruncate64(int fd, off64_t length) {
    CUTTING(ours(fd), REAL(ftruncate64)(fd, length), inode_of(fd), length, 0)
}
int truncate(const char *path, off_t length) {
    char at[PATH_MAX];
    struct stat about;
    uint64_t inode = stat(path, &about) ? 0 : about.st_ino;
    CUTTING(locate(AT_FDCWD, path, at), REAL(truncate)(path, length), inode, length, at)
}
int truncate64(const char *path, off64_t length) { return truncate(path, length); }

static int64_t length_of(int fd) {
    struct stat about;
    return fstat(fd, &about) ? 0 : about.st_size;
}
int fallocate(int fd, int how, off_t offset, off_t length) {
    if (how && ours(fd)) note(MAPPED, inode_of(fd), how, 0, 0, 0, 0); /* holes are not modeled */
    CUTTING(ours(fd), REAL(fallocate)(fd, how, offset, length), inode_of(fd), length_of(fd), 0)
}
int fallocate64(int fd, int how, off64_t offset, off64_t length) {
    return fallocate(fd, how, offset, length);
}
int posix_fallocate(int fd, off_t offset, off_t length) {
    CUTTING(ours(fd), REAL(posix_fallocate)(fd, offset, length), inode_of(fd), length_of(fd), 0)
}
int posix_fallocate64(int fd, off64_t offset, off64_t length) {
    return posix_fallocate(fd, offset, length);
}

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    if (fd >= 0 && (flags & MAP_SHARED) && (protection & PROT_WRITE) && ours(fd))
        note(MAPPED, inode_of(fd), offset, 0, 0, 0, 0);
    return REAL(mmap)(address, length, protection, flags, fd, offset);
}
void *mmap64(void *address, size_t length, int protection, int flags, int fd, off64_t offset) {
    return mmap(address, length, protection, flags, fd, offset);
}

/* -- waiting for the disk ------------------------------------------------------------------ */

#define SYNCING(call)                                                                 \
    if (!ours(fd)) return call;                                                       \
    pthread_mutex_lock(&lock);                                                        \
    int failed = call;                                                                \
    if (!failed) note(SYNC, inode_of(fd), 0, 0, 0, 0, 0);                             \
    pthread_mutex_unlock(&lock);                                                      \
    return failed;

int fsync(int fd) { SYNCING(REAL(fsync)(fd)) }
int fdatasync(int fd) { SYNCING(REAL(fdatasync)(fd)) }

/* -- names --------------------------------------------------------------------------------- */

#define NAMING(test, call, op, path, other)                                           \
    if (!(test)) return call;                                                         \
    struct stat about;                                                                \
    pthread_mutex_lock(&lock);                                                        \
    int failed = call;                                                                \
    const char *known = op == UNLINK ? 0 : op == MKDIR ? path : other;                \
    uint64_t inode = known && !lstat(known, &about) ? about.st_ino : 0;               \
    if (!failed) note(op, inode, 0, path, other, 0, 0);                               \
    pthread_mutex_unlock(&lock);                                                      \
    return failed;

/* A name outside of root is recorded as an empty path. */
#define TWO(old_folder, old, new_folder, new)                                         \
    char from[PATH_MAX], to[PATH_MAX];                                                \
    int known_from = locate(old_folder, old, from), known_to = locate(new_folder, new, to); \
    if (!known_from) from[0] = 0;                                                     \
    if (!known_to) to[0] = 0;

int rename(const char *old, const char *new) {
    TWO(AT_FDCWD, old, AT_FDCWD, new)
    NAMING(known_from || known_to, REAL(rename)(old, new), RENAME, from, to)
}
int renameat(int of, const char *old, int nf, const char *new) {
    TWO(of, old, nf, new)
    NAMING(known_from || known_to, REAL(renameat)(of, old, nf, new), RENAME, from, to)
}
int renameat2(int of, const char *old, int nf, const char *new, unsigned flags) {
    TWO(of, old, nf, new)
    NAMING(known_from || known_to, REAL(renameat2)(of, old, nf, new, flags), RENAME, from, to)
}
int link(const char *old, const char *new) {
    TWO(AT_FDCWD, old, AT_FDCWD, new)
    NAMING(known_from || known_to, REAL(link)(old, new), LINK, from, to)
}
int linkat(int of, const char *old, int nf, const char *new, int flags) {
    TWO(of, old, nf, new)
    NAMING(known_from || known_to, REAL(linkat)(of, old, nf, new, flags), LINK, from, to)
}
int unlink(const char *path) {
    char at[PATH_MAX];
    NAMING(locate(AT_FDCWD, path, at), REAL(unlink)(path), UNLINK, at, 0)
}
int unlinkat(int folder, const char *path, int flags) {
    char at[PATH_MAX];
    NAMING(locate(folder, path, at), REAL(unlinkat)(folder, path, flags), UNLINK, at, 0)
}
int remove(const char *path) {
    char at[PATH_MAX];
    NAMING(locate(AT_FDCWD, path, at), REAL(remove)(path), UNLINK, at, 0)
}
int rmdir(const char *path) {
    char at[PATH_MAX];
    NAMING(locate(AT_FDCWD, path, at), REAL(rmdir)(path), UNLINK, at, 0)
}
int mkdir(const char *path, mode_t mode) {
    char at[PATH_MAX];
    NAMING(locate(AT_FDCWD, path, at), REAL(mkdir)(path, mode), MKDIR, at, 0)
}
int mkdirat(int folder, const char *path, mode_t mode) {
    char at[PATH_MAX];
    NAMING(locate(folder, path, at), REAL(mkdirat)(folder, path, mode), MKDIR, at, 0)
}
