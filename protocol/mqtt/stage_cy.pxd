# The C side of stage_cy.py: what it holds while it stages.

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset

from tailrace.protocol.topic_table cimport tr_place
from tailrace.shard.frame_cy cimport tr_store32

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    /* Keyed with a number of this process, so that nobody can choose stream names that collide. */
    static inline uint64_t tr_stream_hash(const uint8_t *p, size_t length, uint64_t key) {
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

    /* A topic of up to 128 levels, of at least a byte, that may be the name of a new stream as it is. */
    static inline int tr_is_plain_topic(const uint8_t *p, size_t length) {
        int levels = 1;
        if (p[length - 1] == '/') return 0;
        for (const uint8_t *end = p + length; p < end; p++) {
            if (*p <= 32 || *p > 126 || *p == '|' || *p == '$' || *p == '+' || *p == '#' || *p == '*')
                return 0;
            levels += *p == '/';
        }
        return levels <= 128;
    }
    """
    uint64_t tr_stream_hash(const uint8_t *p, size_t length, uint64_t key) noexcept nogil
    bint tr_is_plain_topic(const uint8_t *p, size_t length) noexcept nogil

# One PUBLISH cut up; `size` is that of the whole packet. In a run, `topic_length` is 0 if the topic is the stream's
# name.
cdef struct Packet:
    const uint8_t *topic
    const uint8_t *payload
    uint32_t topic_length
    uint32_t payload_length
    uint32_t group
    uint32_t packet_id        # 0 with QoS 0
    Py_ssize_t size

# All of a run that goes to one stream; `seen` is the topic of its last packet, `next` the group of the packet after
# that.
cdef struct Group:
    const uint8_t *name
    const uint8_t *seen
    uint32_t name_length
    uint32_t seen_length
    bint has_topic            # messages with the topic `seen` have it in their metadata
    Py_ssize_t next
    uint64_t hash
    Py_ssize_t count
    Py_ssize_t nbytes
    uint8_t *out

# Packets and groups begin in the struct itself, on the stack: most reads hold few.
cdef struct Staging:
    Packet *packets
    Group *groups
    int *slots                # group index + 1 by hash
    Py_ssize_t packet_count
    Py_ssize_t packet_room
    Py_ssize_t acked_count    # packets with QoS 1
    Py_ssize_t group_count
    Py_ssize_t group_room
    Py_ssize_t slot_count     # a power of two, at least twice the groups
    Packet first_packets[64]
    Group first_groups[8]
    int first_slots[16]
