/* Storage whose files take a while to open: a library to preload, as benchmarks/input_ladder.py does.
 *
 * Opening a file whose path begins with $KTE_SLOW_OPEN_UNDER first sleeps for $KTE_SLOW_OPEN_MS milliseconds.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

static void delay(const char *path) {
  const char *under = getenv("KTE_SLOW_OPEN_UNDER");
  const char *milliseconds = getenv("KTE_SLOW_OPEN_MS");
  if (!under || !milliseconds || !path || strncmp(path, under, strlen(under)) != 0) return;
  long nanoseconds = (long)(atof(milliseconds) * 1e6);
  struct timespec span = {nanoseconds / 1000000000L, nanoseconds % 1000000000L};
  nanosleep(&span, NULL);
}

#define OPEN(NAME)                                                \
  int NAME(const char *path, int flags, ...) {                    \
    static int (*real)(const char *, int, ...);                   \
    va_list rest;                                                 \
    va_start(rest, flags);                                        \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest);                                                 \
    if (!real) real = dlsym(RTLD_NEXT, #NAME);                    \
    delay(path);                                                  \
    return real(path, flags, mode);                               \
  }

#define OPENAT(NAME)                                              \
  int NAME(int folder, const char *path, int flags, ...) {        \
    static int (*real)(int, const char *, int, ...);              \
    va_list rest;                                                 \
    va_start(rest, flags);                                        \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest);                                                 \
    if (!real) real = dlsym(RTLD_NEXT, #NAME);                    \
    delay(path);                                                  \
    return real(folder, path, flags, mode);                       \
  }

#define FOPEN(NAME)                                               \
  FILE *NAME(const char *path, const char *mode) {                \
    static FILE *(*real)(const char *, const char *);             \
    if (!real) real = dlsym(RTLD_NEXT, #NAME);                    \
    delay(path);                                                  \
    return real(path, mode);                                      \
  }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FOPEN(fopen)
FOPEN(fopen64)
