/* fabric_sides.h - fabrics under test, several in one process.
 *
 * A side is one fabric with what it has seen. Two or three sides live in this process and
 * are pumped in turn, sleeping on their descriptors whenever all of them may; a test that
 * waits in vain for 30 s fails. */
#ifndef COMMD_FABRIC_SIDES_H
#define COMMD_FABRIC_SIDES_H

#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <cmocka.h>

#include "tests/lib/fabric_fault.h"
#include "tests/lib/fabric_loop.h"
#include "transport/fabric/ucx/fabric_ucx.h"

enum { SIDES = 3, MAX_LOG = 4096, MB = 1 << 20 };

struct head {
    uint32_t seq;
    uint32_t len;
    uint8_t pad[100]; /* headers of many sizes: pad[] is cut off */
};

enum take { TAKE_AT_ONCE, TAKE_LATER, TAKE_DROP, TAKE_IN_TURNS };

struct body {
    struct side *side;
    uint8_t *buf;
    uint32_t seq, len;
    void *claim;
    unsigned done; /* how often */
    int st;
};

struct side {
    struct fabric *f;
    struct fabric_hub *hub; /* borrowed */
    uint8_t addr[FABRIC_ADDR_MAX];
    size_t addr_len;
    enum take take;
    const struct fabric_events *instead; /* of the below: gets the events */
    bool calling;                        /* inside send() or recv(): done may not run */
    unsigned aparts;                     /* how often it was told whether there is a connection */
    bool connected;                      /* as it was told last */
    unsigned msgs, bad_order, bad_bytes, taken, down, down_peer;
    uint32_t next_seq[8];
    int down_err;
    char down_why[128];
    struct body *body[MAX_LOG]; /* claimed or kept bodies, by arrival */
    unsigned bodies;
    unsigned del_on_msg; /* peer + 1: delete it when a message arrives */
    unsigned echo_on_msg;
};

struct sending {
    struct side *side;
    uint8_t *buf;
    unsigned done;
    int st;
};

struct world {
    const char *kind;
    struct fabric_hub *hub;
    struct side side[SIDES];
    unsigned n;
};

uint64_t rnd(uint64_t *s);
void token(uint8_t out[32], unsigned from, unsigned to, unsigned incarnation);
void take_body(struct body *b);
void on_msg(void *arg, const struct fabric_msg *m);
void on_peer_down(void *arg, unsigned peer, int err, const char *why);
void side_close(struct side *s);
struct world *world_new(const char *kind, unsigned n);
void world_free(struct world *w);
void add(struct world *w, unsigned i, unsigned j, unsigned incarnation);
struct world *linked(const char *kind);
double now(void);
void rest(struct world *w);
bool turn(struct world *w);
void pump_until_quiet(struct world *w);
void put(struct side *s, unsigned peer, uint32_t seq, size_t hdr_len, size_t len,
         struct sending *out);
unsigned count_done(const struct sending *s, unsigned n);
void free_sendings(struct sending *s, unsigned n);
void on_body(void *arg, int st);

#define pump_until(w, cond)                                                                        \
    do {                                                                                           \
        double limit_ = now() + 300;                                                               \
        while (!(cond)) {                                                                          \
            if (now() > limit_)                                                                    \
                fail_msg("waited in vain for: %s", #cond);                                         \
            if (!turn(w))                                                                          \
                rest(w);                                                                           \
        }                                                                                          \
    } while (0)

void contract_random_life(void **state); /* test_fabric_life.c */

/* test_fabric_net.c: those of @kind that reach other processes. */
int run_net_tests(const char *kind);
int run_victim(int fd, const char *kind); /* the process to be killed */
/* Opening must fail with @want and a text that begins with @text. */
void refused(const char *kind, const char *device, const char *tls, const char *ports, int want,
             const char *text);
int run_tcp_tests(void);     /* test_fabric_tcp.c */
int run_link_tests(void);    /* test_fabric_links.c */
int run_mend_tests(void);    /* test_fabric_mend.c */
int run_aead_tests(void);    /* test_fabric_aead.c */
int run_sealed_tests(void);  /* test_fabric_sealed.c */
int run_thread_tests(void);  /* test_fabric_threads.c */
int run_greet_tests(void);   /* test_fabric_greet.c */
int run_key_tests(void);     /* test_fabric_keys.c */
int run_old_tests(void);     /* test_fabric_old.c */
int run_express_tests(void); /* test_fabric_express.c */
int run_ucx_tests(void);     /* test_fabric_ucx.c */

#endif
