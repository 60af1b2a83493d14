# The C side of line_cy.py: what it holds while it stages, and the few steps that are plainer in C.

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

from tailrace.protocol.topic_table cimport tr_place
from tailrace.shard.frame_cy cimport tr_store32

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    /* Keyed with a number of this process, so that nobody can choose stream names that collide. */
    static inline uint64_t tr_name_hash(const uint8_t *p, size_t length, uint64_t key) {
        uint64_t hash = key ^ length, word;
        while (length) {
            size_t step = length < 8 ? length : 8;
            word = 0;
            memcpy(&word, p, step);
            unsigned __int128 product = (unsigned __int128)(hash ^ word) * 0x9E3779B97F4A7C15u;
            hash = (uint64_t)product ^ (uint64_t)(product >> 64) ^ key;
            p += step; length -= step;
        }
        return hash ^ (hash >> 32);
    }

    static inline int tr_is_pub(const uint8_t *p) {
        return (p[0] | 0x20) == 'p' && (p[1] | 0x20) == 'u' && (p[2] | 0x20) == 'b' && (p[3] == ' ' || p[3] == '\t');
    }

    /* `topic` and a blank: six bytes. */
    static inline int tr_is_topic(const uint8_t *p) {
        return (p[0] | 0x20) == 't' && (p[1] | 0x20) == 'o' && (p[2] | 0x20) == 'p' && (p[3] | 0x20) == 'i'
            && (p[4] | 0x20) == 'c' && (p[5] == ' ' || p[5] == '\t');
    }

    static inline void tr_prefetch(const void *p) { __builtin_prefetch(p, 1); }
    """
    uint64_t tr_name_hash(const uint8_t *p, size_t length, uint64_t key) noexcept nogil
    bint tr_is_pub(const uint8_t *p) noexcept nogil
    bint tr_is_topic(const uint8_t *p) noexcept nogil
    void tr_prefetch(const void *p) noexcept nogil

cdef struct Message:
    const uint8_t *payload
    uint32_t length
    uint32_t group

cdef struct Topic:
    const uint8_t *text
    uint32_t length           # 0 without one

# `head` is how the stream's last line began, up to and with the bar; `topic` is in it; `next` is the group of the line
# after that.
cdef struct Group:
    const uint8_t *name
    const uint8_t *head
    Topic topic
    Py_ssize_t metadata_bytes
    Py_ssize_t head_bytes
    Py_ssize_t next
    uint64_t hash
    Py_ssize_t count
    Py_ssize_t nbytes
    uint8_t *out
    uint32_t name_length

# Messages and groups begin in the struct itself, on the stack: most reads hold few.
cdef struct Staging:
    Message *messages
    Topic *topics         # of each message, or NULL while none has one
    Group *groups
    int *slots            # group index + 1 by hash, or NULL while there are few groups
    const uint8_t *table  # of the rules for topics, or NULL
    Py_ssize_t message_count
    Py_ssize_t message_room
    Py_ssize_t group_count
    Py_ssize_t group_room
    Py_ssize_t slot_count     # a power of two, at least twice the groups
    Message first_messages[64]
    Group first_groups[8]

# A line cut up: its name, where its payload begins (NULL: not a line for `stage`).
cdef struct Head:
    const uint8_t *name
    uint32_t name_length
    bint plain                # the name is ASCII, so nothing more has to be asked about it
    const uint8_t *topic
    uint32_t topic_length     # 0 without one
    bint plain_topic          # it is ASCII and has no escapes, or there is none
    const uint8_t *payload
