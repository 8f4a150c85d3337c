/* service.h - a commd-gpu as commd starts it, over the driver without a GPU; and processes that are
 * its clients. They speak shm/gpu/session.h themselves, so that they can also break it. */
#ifndef COMMD_TEST_SERVICE_H
#define COMMD_TEST_SERVICE_H

#include <commd/commd.h>
#include <sys/types.h>

#include "shm/gpu/session.h"
#include "shm/proto/msg.h"

enum { SERVICE_PATIENCE_MS = 300000, SERVICE_MAX_DEVICES = 8 };

/* ---- the process, from its commd --------------------------------------------------------------
 */

struct service {
    pid_t pid;
    int control, line;
    uint32_t clients, pings;
    uint32_t weight; /* of the users of sessions that it is given from now on */
    uint32_t payer;  /* likewise, who is charged for them; 0: each itself */
    struct msg_gpu_hello hello;
    struct msg_gpu_device device[SERVICE_MAX_DEVICES]; /* as told last */
};

/* @settings: NULL, or "NAME=VALUE" words for its environment alone, NULL at the end. Returns when
 * it has said hello. */
void service_start(struct service *sv, const char *const *settings);
/* Asks for what it says of its devices; false: it is gone. */
bool service_ask(struct service *sv);
/* Gives it a session of @uid; returns the client's end. @client, if not NULL: its number. */
int service_session(struct service *sv, uint32_t uid, uint32_t pid, uint32_t *ret_client);
/* The same with a number and a socket of the caller's; takes @fd. */
void service_give(struct service *sv, uint32_t uid, uint32_t pid, uint32_t client, int fd);
void service_session_del(struct service *sv, uint32_t client);
/* Its commd is gone, and another one there: the sessions that it names, @most of them, and how many
 * it has. */
unsigned service_resume(struct service *sv, struct msg_gpu_session *ret, unsigned most);
/* Closes the control socket and the line, and returns its exit status; 128 + n: signal n. */
int service_stop(struct service *sv);
int service_status(struct service *sv); /* ... of one that ends by itself */
/* Knobs of the fake that change while commd-gpu runs: settings for service_start(), with @line, or
 * several, to begin with; later other ones; the end. */
const char *const *service_knobs(const char *line);
void service_turn_knobs(const char *line);
void service_knobs_end(void);
/* Descriptors of a process, and a few more. */
unsigned open_fds(pid_t pid);
/* Until it says so of device 0, or patience ends. */
bool service_until(struct service *sv, uint32_t clients, uint32_t groups, uint64_t mapped);

/* ---- a client ----------------------------------------------------------------------------------
 */

struct client {
    struct cuda cu;
    cu_context ctx;
    cu_stream stream;
    struct cu_uuid uuid;
    int sock, bell;
    struct session_region *region;
    cu_ptr flags;
    uint64_t next; /* operation */
    uint32_t aux;  /* bytes of its ring that were given out */
    uint32_t memories;
    struct session_msg last; /* answer */
    int fds[4];
    unsigned nfds;
};

/* In a process that has not used the driver: takes @sock, and says hello. 0, or the code of the
 * answer; c->last has its text. */
int client_open(struct client *c, int sock, int device);
/* Loads the driver alone, and makes a context. */
void client_driver(struct client *c, int device);
/* Sends a message and @n bytes behind it, and descriptors. */
bool client_send(struct client *c, const struct session_msg *m, const void *tail, size_t n,
                 const int *fds, unsigned nfds);
/* Waits for a message; false: the socket has ended. */
bool client_receive(struct client *c);
/* Sends it and returns the code of the answer; INT32_MIN: the socket has ended. */
int client_ask(struct client *c, const struct session_msg *m, const void *tail, size_t n,
               const int *fds, unsigned nfds);

/* Memory that commd-gpu has mapped: as cudaMalloc() gives it, or of chunks. */
struct buffer {
    cu_ptr at;
    uint64_t bytes;
    uint32_t id;
};
int client_alloc(struct client *c, uint64_t bytes, struct buffer *ret);
int client_alloc_chunks(struct client *c, uint64_t bytes, unsigned chunks, struct buffer *ret);
void client_forget(struct client *c, uint32_t id);
void client_put(struct client *c, cu_ptr to, const void *from, size_t n);
void client_get(struct client *c, void *to, cu_ptr from, size_t n);

/* What a rank says of its group. */
struct attaching {
    uint32_t number; /* the client's */
    uint64_t group, epoch, first;
    uint32_t world, rank, units;
    uint16_t unit_of_rank[SESSION_MAX_WORLD];
    struct session_unit unit[64];
    uint32_t nnodes, me;
};
void membership_one(struct attaching *m, const struct client *c, uint32_t number, uint64_t group,
                    uint32_t world, uint32_t rank); /* all on the client's GPU */
/* Rank r is on GPU @device[r]. */
void membership_spread(struct attaching *m, struct client *c, uint32_t number, uint64_t group,
                       uint32_t world, uint32_t rank, const uint8_t *device);
void membership_message(const struct attaching *m, struct session_msg *ret, void *tail,
                        size_t *ret_len);
int client_attach(struct client *c, const struct attaching *m);

/* An operation as a slot has it. */
struct request {
    struct op_desc desc;
    uint32_t group; /* the client's number */
    struct session_place send, recv;
    double scale;
    uint32_t aux_bits;
    const uint64_t *aux; /* words */
    uint32_t aux_words;
};
/* Announces it; the input is there when what is on the stream is done. Returns its number. */
uint64_t client_announce(struct client *c, const struct request *q);
/* The two halves. */
uint64_t client_announce_only(struct client *c, const struct request *q);
void client_ready(struct client *c, uint64_t n);
/* Its code; INT32_MAX: not within patience; INT32_MIN: the socket has ended before. */
int client_wait(struct client *c, uint64_t n, struct session_result *ret);
bool client_done(const struct client *c, uint64_t n);

/* ---- processes ---------------------------------------------------------------------------------
 */

/* Runs @fn(@arg, sock) in a process of its own, a client of user @uid. It ends with 0 if all is
 * well. */
typedef int (*client_fn)(void *arg, int sock);
pid_t client_spawn(struct service *sv, uint32_t uid, client_fn fn, void *arg);
int client_join(pid_t pid); /* its exit status; 128 + n: signal n */

/* Processes meet: the @n-th to come wakes all. In memory that forks share. */
struct meeting {
    _Atomic uint32_t came;
};
struct meeting *meetings_new(unsigned n);
void meet(struct meeting *m, uint32_t n);

/* A number from @seed, for the same sequence everywhere. */
uint64_t draw(uint64_t *seed);

/* In a client: says what is wrong, and ends the process. */
#define MUST(cond)                                                                                 \
    do {                                                                                           \
        if (!(cond))                                                                               \
            must_fail(__FILE__, __LINE__, #cond);                                                  \
    } while (0)
_Noreturn void must_fail(const char *file, int line, const char *cond);

#endif
