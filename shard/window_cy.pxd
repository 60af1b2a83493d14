# The C side of window_cy.py.
#
# A failing device or a full disk is a SIGBUS at a store into a mapping. The handler jumps out of the store (siglongjmp)
# if this thread is in tr_window_append and the address belongs to that append. Any other SIGBUS goes to the handler
# that was installed before.

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdint cimport uint64_t

from tailrace.shard.frame_cy cimport tr_stamp_run

cdef extern from *:
    """
    #include <errno.h>
    #include <setjmp.h>
    #include <signal.h>
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>
    #include <time.h>

    /* Places in the words of a window; shard/window_cy.py has them too. */
    enum { TR_CONTENT_AT, TR_CONTENT_START, TR_CONTENT_END, TR_INDEX_AT, TR_INDEX_START, TR_INDEX_END,
           TR_END_WORD_AT, TR_NEXT_WORD_AT, TR_FRESH_FROM, TR_FRESH_UNTIL, TR_STORED };
    enum { TR_DONE, TR_PAST, TR_STALE, TR_FAULT };

    #define TR_RANGES 4
    #define TR_FAULT_PAGE 65535u  /* some machines report the page, of up to 64 KiB, instead of the address */

    typedef struct { sigjmp_buf jump; uintptr_t at[TR_RANGES], end[TR_RANGES]; } tr_guard;
    static __thread tr_guard *volatile tr_guarded;
    static struct sigaction tr_bus_before;
    static volatile sig_atomic_t tr_bus_passed;

    static void tr_on_bus(int number, siginfo_t *info, void *context) {
        tr_guard *guard = tr_guarded;
        (void)context;
        if (guard && info->si_code > 0) {
            uintptr_t at = (uintptr_t)info->si_addr;
            for (int i = 0; i < TR_RANGES; i++)
                if (at >= (guard->at[i] & ~(uintptr_t)TR_FAULT_PAGE) && at < guard->end[i]) {
                    tr_guarded = NULL;
                    siglongjmp(guard->jump, 1);
                }
        }
        /* Not ours. The second time the former handler has given it back: it must not go round for ever. */
        if (tr_bus_passed++) signal(SIGBUS, SIG_DFL);
        else sigaction(SIGBUS, &tr_bus_before, NULL);
        raise(number);
    }

    static int tr_guard_install(void) {
        struct sigaction found, ours;
        if (sigaction(SIGBUS, NULL, &found)) return -1;
        if ((found.sa_flags & SA_SIGINFO) && found.sa_sigaction == tr_on_bus) return 0;
        tr_bus_before = found;
        memset(&ours, 0, sizeof ours);
        ours.sa_sigaction = tr_on_bus;
        ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;  /* no signal is blocked in it, so none stays blocked */
        sigemptyset(&ours.sa_mask);
        return sigaction(SIGBUS, &ours, NULL);
    }

    /* The word of a value: tailrace.shard.header.tagged. */
    static uint64_t tr_tagged(uint64_t value) {
        uint16_t crc = 0xFFFF;
        for (int i = 0; i < 6; i++) {
            uint8_t x = (uint8_t)((crc >> 8) ^ (uint8_t)(value >> 8 * i));
            x ^= x >> 4;
            crc = (uint16_t)((crc << 8) ^ ((uint16_t)x << 12) ^ ((uint16_t)x << 5) ^ x);
        }
        return value | (uint64_t)crc << 48;
    }

    static uint64_t tr_file_clock_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME_COARSE, &now);
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    }

    static void tr_guard_range(tr_guard *guard, int i, uintptr_t at, size_t size) {
        guard->at[i] = at;
        guard->end[i] = at + size;
    }

    static int tr_window_append(
        uint64_t *words, const char *frames, size_t size, const char *entries, size_t index_size,
        uint64_t offset, uint64_t index_offset, uint64_t next_seq
    ) {
        if (offset < words[TR_CONTENT_START] || offset + size > words[TR_CONTENT_END]) return TR_PAST;
        if (index_offset < words[TR_INDEX_START] || index_offset + index_size > words[TR_INDEX_END]) return TR_PAST;
        uint64_t now_ns = tr_file_clock_ns();
        if (now_ns < words[TR_FRESH_FROM] || now_ns >= words[TR_FRESH_UNTIL]) return TR_STALE;

        char *content = (char *)(uintptr_t)words[TR_CONTENT_AT] + (offset - words[TR_CONTENT_START]);
        char *index = (char *)(uintptr_t)words[TR_INDEX_AT] + (index_offset - words[TR_INDEX_START]);
        uint64_t *end_word = (uint64_t *)(uintptr_t)words[TR_END_WORD_AT];
        uint64_t *next_word = (uint64_t *)(uintptr_t)words[TR_NEXT_WORD_AT];
        tr_guard guard;
        volatile int stage = 0;
        tr_guard_range(&guard, 0, (uintptr_t)content, size);
        tr_guard_range(&guard, 1, (uintptr_t)index, index_size);
        tr_guard_range(&guard, 2, (uintptr_t)end_word, 8);
        tr_guard_range(&guard, 3, (uintptr_t)next_word, 8);
        if (sigsetjmp(guard.jump, 0)) {
            if (stage == 1) {  /* the end was stored, the commit was not: take it back, if the page lets us */
                stage = 2;
                tr_guarded = &guard;
                __atomic_store_n(end_word, tr_tagged(offset), __ATOMIC_RELEASE);
            }
            tr_guarded = NULL;
            return TR_FAULT;
        }
        tr_guarded = &guard;
        memcpy(content, frames, size);
        memcpy(index, entries, index_size);
        __atomic_store_n(end_word, tr_tagged(offset + size), __ATOMIC_RELEASE);
        stage = 1;
        __atomic_store_n(next_word, tr_tagged(next_seq), __ATOMIC_RELEASE);
        tr_guarded = NULL;
        words[TR_STORED]++;
        return TR_DONE;
    }
    """
    int tr_guard_install()
    uint64_t tr_tagged(uint64_t value)
    uint64_t tr_file_clock_ns()
    int tr_window_append(
        uint64_t *words, const char *frames, size_t size, const char *entries, size_t index_size,
        uint64_t offset, uint64_t index_offset, uint64_t next_seq
    )
