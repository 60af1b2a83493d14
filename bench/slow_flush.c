/* Loaded before libc (LD_PRELOAD): each call that makes the disk write its cache takes SLOW_FLUSH_US longer, as on a
   disk with a real cache. Calls of several threads and processes wait at the same time, as devices take several flushes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static struct timespec flush_time;

__attribute__((constructor)) static void read_flush_time(void) {
    const char *text = getenv("SLOW_FLUSH_US");
    long us = text ? atol(text) : 0;
    flush_time.tv_sec = us / 1000000;
    flush_time.tv_nsec = us % 1000000 * 1000;
}

static int flushed(int result) {
    int code = errno;
    struct timespec left = flush_time;
    while (nanosleep(&left, &left) && errno == EINTR) {
    }
    errno = code;
    return result;
}

typedef int sync_call(int);

int fsync(int fd) { return flushed(((sync_call *)dlsym(RTLD_NEXT, "fsync"))(fd)); }

int fdatasync(int fd) { return flushed(((sync_call *)dlsym(RTLD_NEXT, "fdatasync"))(fd)); }

int syncfs(int fd) { return flushed(((sync_call *)dlsym(RTLD_NEXT, "syncfs"))(fd)); }

int msync(void *start, size_t size, int flags) {
    int result = ((int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "msync"))(start, size, flags);
    return flags & MS_SYNC ? flushed(result) : result;
}
