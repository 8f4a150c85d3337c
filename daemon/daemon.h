/* daemon.h - commd as a whole: the core and its edges, and who may call whom.
 *
 *   listener, peer_link, engine_link, signals, timer   -- events -->   daemon_dispatch()
 *   daemon_dispatch()  -- core_input(), core_next() -->  apply_action()  -->  the edges
 *
 * daemon.c makes and ends it, loop.c turns it, events.c tells the core what happened, apply.c
 * carries its decisions out, admin.c answers questions. */
#ifndef COMMD_DAEMON_H
#define COMMD_DAEMON_H

#include <event2/event.h>

#include "daemon/admin/diary.h"
#include "daemon/admin/gather.h"
#include "daemon/admin/waits.h"
#include "daemon/memory/arenas.h"
#include "daemon/memory/boards.h"
#include "daemon/conf/conf.h"
#include "daemon/core/core.h"
#include "daemon/link/engine_link.h"
#include "daemon/link/listener.h"
#include "daemon/link/peer_link.h"
#include "daemon/process/ended.h"

/* sysexits(3) where they fit */
enum { EXIT_INTERNAL = 1, EXIT_USAGE_ = 64, EXIT_PERMISSION = 77, EXIT_CONFIG = 78 };

struct failed_board;
struct subuid;
struct admin;
struct http;

/* Of the client that was last in a slot, as it says itself. */
struct client_command {
    uint32_t uid, payer, pid;
    bool here;
    char text[MSG_COMMAND_MAX], job[MSG_NAME_MAX];
    struct client_wait wait;
};

/* What is told of the engine, or of commd-gpu, as which events. */
struct program_edge {
    struct daemon *d;
    enum core_event_type started, msg, down;
};

struct daemon {
    struct event_base *base; /* owned, as everything below */
    struct conf *conf;
    char config_file[CONF_PATH_MAX]; /* "": none, see user.c */
    struct payers *payers;           /* NULL: each uid is charged itself */
    struct subuid *subuid;           /* reads others; NULL: none does */
    bool insecure;
    /* of the engine, of commd-gpu; NULL: none. Borrowed from the command line */
    const char *launcher, *gpu_launcher;
    uint64_t idle_ms;        /* leave when nobody has needed us for so long; 0: stay */
    struct sock_addr *addrs; /* of conf->nodes */
    char device[CONF_NAME_MAX];
    struct conf_keys keys;

    struct core *core;
    uint64_t incarnation, started_ms;
    struct listener *listener;
    struct peer_links *peers;   /* NULL on a node that is alone */
    struct engine_link *engine; /* likewise */
    struct engine_link *gpu;    /* commd-gpu; NULL where there is none */
    struct program_edge engine_edge, gpu_edge;
    struct closer *closer; /* closes what came from clients */
    struct boards boards;
    struct arenas arenas;
    uint8_t (*peer_tokens)[32]; /* by node: what our engine presents to its engine */
    unsigned *token_turns;      /* by node: links so far, see our_token() */
    unsigned *doorbells;        /* by client slot: the engine's life that has its doorbell */
    unsigned nslots;
    struct failed_board *failed;     /* to be reported when the queue is empty */
    struct admin *admin;             /* questions of commctl, and the answer under way */
    struct gather *gather;           /* questions about ranks, which all nodes answer */
    struct client_command *commands; /* by client slot: how its program was called */
    struct ended *ended;             /* how processes of clients ended */
    struct diary *diary;             /* what happened, for commctl events */
    struct http *http;               /* NULL where listen.http says nothing */
    uint64_t longest_turn_us;        /* of our processor's time */
    uint64_t turns, turns_us;        /* how many there were, and the time of all of them */

    struct event *signals[3], *deadline, *watchdog, *status_timer, *stop_timer, *idle_timer;
    struct event *boards_timer, *payers_timer;
    unsigned boards_ms; /* for which it is set */
    char status[256];
    uint64_t status_ms;
    uint64_t deadline_ms; /* for which the timer is set; UINT64_MAX: it is not */
    bool crowded;         /* with groups, since memory was given back last: see loop.c */
    bool unseen;          /* a client has no pid here, and that was said */
    bool dispatching, idle_due, stop, stopping, quit;
    int exit_code;
};

/* ---- daemon.c -------------------------------------------------------------------------------- */

/* Checks all that can be checked without touching anything: addresses, device, key. 0, or an
 * exit code after having printed why. */
int daemon_prepare(struct daemon *d);
/* Opens everything. 0, or an exit code after having printed why. */
int daemon_start(struct daemon *d);
void daemon_fini(struct daemon *d);

/* What the core has of the configuration. */
void daemon_core_config(const struct daemon *d, struct core_config *ret_config);
/* Writes down something that is no decision of the core: @what is a word of commctl events. */
void daemon_note(struct daemon *d, const char *what, const char *fmt, ...) _printf_(3, 4);

/* ---- payers.c -------------------------------------------------------------------------------- */

/* Reads anew who is charged for which uid: before the core is there, or beside it. */
void payers_start(struct daemon *d);
void payers_read(struct daemon *d);
void payers_look(struct daemon *d); /* whether they are read */
void payers_fini(struct daemon *d);

/* ---- reload.c -------------------------------------------------------------------------------- */

enum reload {
    RELOAD_DONE,
    RELOAD_IN_PART, /* what cannot change in a running commd is as before */
    RELOAD_REFUSED, /* all is as before */
};
/* Reads the configuration and the cluster's keys again; @ret_text: what came of it, in one line
 * that the log and commctl events have, too. */
enum reload daemon_reload(struct daemon *d, char *ret_text, size_t cap);

/* ---- events.c -------------------------------------------------------------------------------- */

/* Their arg is the daemon. */
extern const struct listener_ops listener_ops;
extern const struct peer_links_ops peer_ops;
extern const struct engine_link_ops program_ops;

/* ---- loop.c ---------------------------------------------------------------------------------- */

int loop_init(struct daemon *d);
void loop_fini(struct daemon *d);
/* Turns until the daemon has ended. */
void loop_run(struct daemon *d);
/* Asks for the orderly end, which begins when this turn is over. */
void loop_stop(struct daemon *d);
/* Has boards that were left looked at, as long as there are any. */
void loop_watch_boards(struct daemon *d);
/* Feeds the core with @event (its time is filled in) and carries out what it decides. Never
 * from within apply_action(). */
void daemon_dispatch(struct daemon *d, struct core_event *event);

/* ---- arena_link.c ---------------------------------------------------------------------------- */

/* A welcome client's MSG_ARENA_*; @payer is charged. */
void arena_msg(struct daemon *d, unsigned slot, uint32_t payer, const struct msg *msg);

/* ---- apply.c --------------------------------------------------------------------------------- */

void apply_action(struct daemon *d, const struct core_action *action);
/* The client in @slot is gone: takes back its doorbell and its arenas. */
void apply_client_gone(struct daemon *d, unsigned slot);
/* Takes the oldest board that could not be made; false when there is none. */
bool apply_next_failed(struct daemon *d, uint64_t *ret_group, enum cause *ret_cause, char *ret_text,
                       size_t len);

/* ---- admin.c; the last: answers.c ------------------------------------------------------------ */

int admin_init(struct daemon *d);
void admin_fini(struct daemon *d);
/* Puts the question in line. Its client is not read from until it has the answer. */
void admin_ask(struct daemon *d, unsigned slot, const struct msg_admin *question);
/* The client in @slot is gone, and so is its question. */
void admin_drop(struct daemon *d, unsigned slot);
/* Works on answers for a moment, at the end of a turn; what remains makes the next come at once. */
void admin_turn(struct daemon *d);
/* "node a of cluster c: 2 of 3 nodes up, engine up, 5 clients, 2 groups" */
void admin_status_line(struct daemon *d, char *buf, size_t len);

#endif
