# The C side of publish_cy.py: its state while it stages.

from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from tailrace.shard.frame_cy cimport tr_load16, tr_load32, tr_load64, tr_store32, tr_store64

cdef extern from *:
    """
    #include <stdint.h>

    /* Keyed with a number of this process, so that nobody can choose handles that collide. */
    static inline uint64_t tr_handle_hash(uint32_t handle, uint64_t key) {
        unsigned __int128 product = (unsigned __int128)(handle ^ key) * 0x9E3779B97F4A7C15u;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    """
    uint64_t tr_handle_hash(uint32_t handle, uint64_t key) noexcept nogil

# One PUBLISH: its frames, how many they are, and the group of its handle.
cdef struct Request:
    const uint8_t *frames
    Py_ssize_t nbytes
    uint32_t number
    uint32_t messages
    Py_ssize_t group

# All that a run publishes by one handle; `out` and `numbers` are where the next request of it is written.
cdef struct Group:
    uint32_t handle
    uint32_t next
    Py_ssize_t requests
    Py_ssize_t messages
    Py_ssize_t nbytes
    uint8_t *out
    uint8_t *numbers

# Of the group of a topic: the group that has all of its stream, and the metadata of its messages. In another place than
# the group, since publishes to streams need the cache for that.
cdef struct Topic:
    const uint8_t *metadata
    uint32_t metadata_bytes
    uint32_t target

# Reserved at once for `room` requests, which may each have a group of its own.
cdef struct Staging:
    Request *requests
    Group *groups
    int *slots                # group index + 1 by hash
    Py_ssize_t room
    Py_ssize_t request_count
    Py_ssize_t group_count
    Py_ssize_t slot_count     # a power of two, at least twice the room
    Topic *topics             # of the same indices as the groups; NULL if no handle is that of a topic
