/* stream.h - frames with descriptors over a non-blocking UNIX stream socket: what clients and
 * the engine are spoken to with. Bounded on the way in; counted on the way out. */
#ifndef COMMD_STREAM_H
#define COMMD_STREAM_H

#include "shm/util/closer.h"
#include "shm/proto/codec.h"

enum { STREAM_MAX_FDS = 2 }; /* with one message, and waiting to be taken */

enum stream_result {
    STREAM_OK,
    STREAM_AGAIN,   /* the socket will say when */
    STREAM_LATER,   /* descriptors cannot be sent or taken now; no socket says when: ask a clock */
    STREAM_EOF,     /* the other side has closed */
    STREAM_FAILED,  /* nothing more can be read, or sent */
    STREAM_GARBAGE, /* what came is not our protocol */
};

struct stream_frame;

/* Counts descriptors that are kept open; @up, where there is one, counts them too. */
struct stream_count {
    unsigned n;
    struct stream_count *up; /* borrowed */
};

/* One descriptor that goes to many: queued a thousand times it is open once. */
struct stream_fd;
/* Takes *@fd on success; NULL: no memory. */
struct stream_fd *stream_fd_new(int *fd);
struct stream_fd *stream_fd_unref(struct stream_fd *fd); /* NULL ok; always returns NULL */

struct stream {
    int fd;      /* owned */
    size_t max;  /* largest payload accepted */
    uint8_t *in; /* owned: in[in_off..in_len) is not decoded yet */
    size_t in_off, in_len, in_size;
    struct stream_frame *out, **out_tail; /* owned */
    size_t out_bytes;                     /* unsent */
    unsigned out_fds;                     /* with them, each time it is queued */
    unsigned sent_fds;                    /* so far; set it back as you like */
    /* set by the caller */
    struct stream_count *held; /* borrowed; where unsent ones are counted, or NULL */
    bool (*may_send)(void *arg, unsigned nfds); /* are so many descriptors welcome now? or NULL */
    void *arg;
    bool keeps_fds;             /* the other side may send descriptors */
    struct closer *closer;      /* borrowed: of all descriptors and of the socket; NULL: at once */
    uint32_t uid;               /* in whose lane */
    int in_fds[STREAM_MAX_FDS]; /* owned: that nobody has taken yet, oldest first */
    unsigned nin_fds;
};

/* Takes @fd. */
void stream_init(struct stream *s, int fd, size_t max);
void stream_fini(struct stream *s);
/* Takes the next message; reads where no whole one has come. STREAM_GARBAGE: *ret_why says what
 * came instead. STREAM_LATER: there is no room for the descriptors that are about to come. */
enum stream_result stream_next(struct stream *s, struct msg *ret_msg, const char **ret_why);
/* The oldest descriptor that came in, now the caller's; -1: there is none. */
int stream_take_fd(struct stream *s);
/* Queues @msg with duplicates of @fds. 0 or negative errno, nothing queued then. */
int stream_send(struct stream *s, const struct msg *msg, const int *fds, unsigned nfds);
/* The same with descriptors that are shared: each is referred to until it is sent. */
int stream_send_shared(struct stream *s, const struct msg *msg, struct stream_fd *const *fds,
                       unsigned nfds);
/* Forgets what is not sent. The other side cannot make sense of anything after that. */
void stream_drop(struct stream *s);
/* Sends what the socket takes, in order. STREAM_OK: nothing is left. */
enum stream_result stream_flush(struct stream *s);

#endif
