/* daemon.h - commd as a whole: the core, its edges, and which of them calls which.
 *
 *   listener, peer_link, engine_link, signals, timer   -- events -->   daemon_dispatch()
 *   daemon_dispatch()  -- core_input(), core_next() -->  apply_action()  -->  the edges
 *
 * daemon.c makes and ends the daemon; loop.c runs its loop; events.c tells the core what happened;
 * apply.c and apply_group.c carry out what the core decides; admin.c answers questions. */
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

struct board_news;
struct kept_client;
struct state;
struct subuid;
struct admin;
struct http;

enum { DOORBELL_BEFORE = UINT32_MAX };

/* The client that was last in a slot, as it describes itself. */
struct client_command {
    uint32_t uid, payer, pid;
    bool here;
    char text[MSG_COMMAND_MAX], job[MSG_NAME_MAX];
    uint32_t plans; /* enum plan_known: that its libcommd knows */
    struct client_wait wait;
};

/* The types of the core's events about the engine, or about commd-gpu. */
struct program_edge {
    struct daemon *d;
    enum core_event_type started, msg, down;
};

struct daemon {
    struct event_base *base; /* owned, as everything below */
    struct conf *conf;
    /* With what the engine and commd-gpu were started that a reload would have others than. NULL:
     * they are of @conf, or of a commd before this one. */
    struct conf *served;
    char config_file[CONF_PATH_MAX]; /* "": none, see user.c */
    /* When the last reload was refused; 0: it was not. Since then what is in force is older. */
    time_t refused_s;
    struct payers *payers; /* NULL: each uid is charged itself */
    struct subuid *subuid; /* reads new payers now; NULL: nothing does */
    bool insecure;
    /* Sockets of the launchers, borrowed from the command line; NULL: we start the program. */
    const char *launcher, *gpu_launcher;
    uint64_t idle_ms;        /* commd ends when no client has come for so long; 0: it stays */
    struct sock_addr *addrs; /* of conf->nodes */
    char device[CONF_NAME_MAX];
    struct conf_keys keys;         /* until the links are made, and so is this: */
    struct tls_identity *identity; /* owned; NULL: certificates count for nothing */

    struct core *core;
    uint64_t incarnation, started_ms;
    uint64_t took_over_ms; /* when it took over from the commd before it; 0: it did not */
    uint64_t deaths;       /* of those before it in a row, if its keeper says so; else 0 */
    struct listener *listener;
    struct peer_links *peers;   /* NULL on a node that is alone */
    struct engine_link *engine; /* NULL on a node that is alone */
    struct engine_link *gpu;    /* commd-gpu; NULL where there is none */
    struct program_edge engine_edge, gpu_edge;
    struct closer *closer; /* closes the descriptors that clients have sent */
    struct boards boards;
    struct arenas arenas;
    uint8_t (*peer_tokens)[32]; /* by node: the token that our engine shows to the node's engine */
    unsigned *token_turns;      /* by node: how many links there were, see our_token() */
    struct {
        bool exports;    /* its commd mixes tokens */
        uint64_t engine; /* of it: the link of the commds is newer than what that link's keys are
                            of; 0: it is not */
    } *peer_secrets;     /* by node */
    bool engine_takes_keys;
    unsigned *doorbells; /* by client slot: the engine's life that has its doorbell, or 0: none has;
                            DOORBELL_BEFORE: perhaps, from a commd before */
    int *bells; /* owned, and what is in it; by client slot: the doorbell that it has; -1: not known
                 */
    unsigned nslots;
    struct board_news *news;         /* of boards; told when the core's queue is empty */
    struct admin *admin;             /* questions of commctl, and the answer under way */
    struct gather *gather;           /* questions about ranks, which all nodes answer */
    struct client_command *commands; /* by client slot: how its program was called */
    struct state *state;             /* for the next commd; NULL: nobody keeps it */
    struct kept_client *kept;        /* by client slot: what of it is in there */
    struct core_counts counted;      /* as they stand there */
    struct ended *ended;             /* how processes of clients ended */
    struct diary *diary;             /* what happened, for commctl events */
    struct http *http;               /* NULL where listen.http says nothing */
    uint64_t longest_turn_us;        /* in CPU time */
    uint64_t turns, turns_us;        /* how many turns there were; the CPU time of all of them */

    pid_t parent; /* when it began */
    struct event *signals[3], *deadline, *watchdog, *status_timer, *stop_timer, *idle_timer;
    struct event *boards_timer, *payers_timer, *away_timer;
    unsigned boards_ms; /* the period of boards_timer */
    char status[256];
    uint64_t status_ms;
    uint64_t deadline_ms; /* when the deadline timer fires; UINT64_MAX: it is not set */
    bool crowded;         /* there were many groups since memory was given back last: see loop.c */
    bool unseen;          /* it was logged that a client has no pid here */
    bool restoring;       /* what a commd before this one knew is being taken over */
    bool left_out;        /* not all clients of that commd could be */
    bool state_full;      /* it was logged that there is no room in it */
    bool dispatching, idle_due, stop, stopping, quit;
    int exit_code;
};

/* ---- daemon.c -------------------------------------------------------------------------------- */

/* Checks addresses, device and key, and opens nothing. 0, or an exit code; the reason is printed.
 */
int daemon_prepare(struct daemon *d);
/* Opens everything. 0, or an exit code; the reason is printed. */
int daemon_start(struct daemon *d);
void daemon_fini(struct daemon *d);

/* The core's part of the configuration. */
void daemon_core_config(const struct daemon *d, struct core_config *ret_config);
/* Adds an event to the diary, for @whose and paid by @payer, or DIARY_EVERYBODY. @what is a word of
 * commctl events. */
void daemon_event(struct daemon *d, const char *what, int64_t whose, int64_t payer,
                  const char *text);
/* Likewise, for everybody. */
void daemon_note(struct daemon *d, const char *what, const char *fmt, ...) _printf_(3, 4);

/* ---- payers.c -------------------------------------------------------------------------------- */

/* Payers: which uid is charged for which. */
void payers_start(struct daemon *d); /* reads them, before the core exists */
void payers_read(struct daemon *d);  /* begins to read them anew, while commd runs */
void payers_look(struct daemon *d);  /* puts them in force if they are read by now */
void payers_fini(struct daemon *d);

/* ---- reload.c -------------------------------------------------------------------------------- */

/* Would the keys and certificates of @conf that lie there now be taken, and for how long? False:
 * *ret_text says what is wrong. */
bool daemon_check_proofs(const struct daemon *d, const struct conf *conf, char *ret_text,
                         size_t cap);
enum reload {
    RELOAD_DONE,
    RELOAD_IN_PART, /* settings that need a restart are as before */
    RELOAD_REFUSED, /* all settings are as before */
};
/* Reads the cluster's keys and this node's certificate, whichever count. The caller clears
 * *ret_keys. */
int daemon_load_proofs(const struct conf *conf, struct conf_keys *ret_keys,
                       struct tls_identity **ret_identity, char **ret_error);
/* With which configuration the engine works. */
const struct conf *daemon_served(const struct daemon *d);
/* May a reload bring @conf? As conf_check_change(), of what is in force and of what the engine has.
 */
int daemon_check_change(const struct daemon *d, const struct conf *conf, char **ret_error);
/* Reads the configuration and the cluster's keys again. @ret_text: the result in one line, as in
 * the log and in commctl events. */
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
/* Asks for the orderly end. It begins when this turn is over. */
void loop_stop(struct daemon *d);
/* Starts the timer that looks at boards that were left, as long as there are any. */
void loop_watch_boards(struct daemon *d);
/* Fills in the time of @event, gives it to the core, and carries out what the core decides. Never
 * called from within apply_action(). */
void daemon_dispatch(struct daemon *d, struct core_event *event);

/* ---- takeover.c ------------------------------------------------------------------------------ */

/* Opens what the commd before this one has left, or begins anew. 0 or -ENOMEM. */
int takeover_begin(struct daemon *d);
/* Takes over its diary, before anything is added to this one. */
void takeover_diary(struct daemon *d);
/* Gives it to the core, the listener and the boards; then, as the first event, to the core to
 * decide on. */
void takeover_restore(struct daemon *d);
void takeover_end(struct daemon *d);
/* commd ends by an internal error. True: it leaves all that is kept to the one that is started
 * next. */
bool takeover_leaves(struct daemon *d);
void takeover_fini(struct daemon *d);
/* The client in @slot comes back with @hello, and is about to be welcomed. */
void takeover_back(struct daemon *d, unsigned slot, const struct msg_client_hello *hello);
/* Fills what WELCOME says of coming back; its list is valid until takeover_welcomed(). */
void takeover_welcome(struct daemon *d, unsigned slot, struct msg_welcome *welcome);
void takeover_welcomed(struct daemon *d, unsigned slot);
void takeover_client_gone(struct daemon *d, unsigned slot);
void takeover_bell(struct daemon *d, unsigned slot); /* it has a new doorbell */
/* The client has sent something after its hello, so it knows that it is back. */
void takeover_heard(struct daemon *d, unsigned slot);
/* The client has ended. If it could not say which groups it had left by then, the core is told. */
void takeover_farewell(struct daemon *d, unsigned slot);
/* Before anybody is told: this node has agreed to the group; it is open, with the board @entry; a
 * rank has gone, with its number of operations; the group is broken; it is closed here; nobody has
 * to hear of it any more. */
void takeover_committed(struct daemon *d, uint64_t group);
void takeover_rank_asked(struct daemon *d, uint64_t group, uint32_t rank, uint32_t req);
void takeover_group(struct daemon *d, const struct core_group_view *view,
                    struct board_entry *entry);
void takeover_rank_gone(struct daemon *d, const struct core_rank_gone *gone);
void takeover_broken(struct daemon *d, const struct core_group_broken *broken);
void takeover_closing(struct daemon *d, const struct core_group_close *close);
void takeover_forget(struct daemon *d, uint64_t group);
/* The engine, or commd-gpu, is up (@engine: as the core says, of the engine); it has ended. */
void takeover_program(struct daemon *d, const struct engine_link *link,
                      const struct core_kept_engine *engine);
void takeover_program_gone(struct daemon *d, const struct engine_link *link);
/* The newest entry of the diary, before anybody can read it; it has pushed out @pushed, or 0. */
void takeover_event(struct daemon *d, uint64_t pushed);
/* At the end of a turn: what the core has counted. */
void takeover_counts(struct daemon *d);

/* ---- arena_link.c ---------------------------------------------------------------------------- */

/* A MSG_ARENA_* of a client whose hello was accepted. @payer is charged. */
void arena_msg(struct daemon *d, unsigned slot, uint32_t payer, const struct msg *msg);

/* ---- apply.c --------------------------------------------------------------------------------- */

void apply_action(struct daemon *d, const struct core_action *action);
/* The client in @slot is gone: takes back its doorbell and its arenas. */
void apply_client_gone(struct daemon *d, unsigned slot);
/* To our engine: the secrets of links that are newer than those of the engines. */
void apply_peer_keys(struct daemon *d);

/* ---- apply_group.c --------------------------------------------------------------------------- */

/* Takes an entry of d->news; false: there is none. */
bool apply_next_news(struct daemon *d, struct core_event *ret_event, char ret_text[MSG_TEXT_MAX]);
void apply_group_position(struct daemon *d, uint64_t group);
void apply_group_bind(struct daemon *d, uint64_t group, uint32_t ops);
void apply_group_open(struct daemon *d, uint64_t id);
/* The engine has told what it has from the commd before. */
void apply_engine_resumed(struct daemon *d);
/* The index of @rank among the local members, which are in ascending order. */
unsigned apply_local_index(const struct core_group_view *view, unsigned rank);
/* The answer of a commd before this one did not reach the client. */
void apply_joined_again(struct daemon *d, uint64_t group, unsigned slot, unsigned rank,
                        uint32_t req);
void apply_rank_gone(struct daemon *d, const struct core_rank_gone *gone);
void apply_nodes_missed(struct daemon *d, uint64_t group);
void apply_group_absent(struct daemon *d, const struct core_group_absent *absent);
void apply_group_broken(struct daemon *d, const struct core_group_broken *broken);
/* @abort: the engine drops the group's operations at once. Else it finishes what other nodes still
 * need. Messages that members have sent go out in any case. */
void apply_group_close(struct daemon *d, const struct core_group_close *close);

/* ---- admin.c; the last: answers.c ------------------------------------------------------------ */

int admin_init(struct daemon *d);
void admin_fini(struct daemon *d);
/* Puts the question in line. Nothing more is read from the client until the answer is out. */
void admin_ask(struct daemon *d, unsigned slot, const struct msg_admin *question);
/* The client in @slot is gone: drops its question. */
void admin_drop(struct daemon *d, unsigned slot);
/* Works on answers for a moment, at the end of a turn. If work remains, the next turn comes at
 * once.
 */
void admin_turn(struct daemon *d);
/* "node a of cluster c: 2 of 3 nodes up, engine up, 5 clients, 2 groups" */
void admin_status_line(struct daemon *d, char *buf, size_t len);

#endif
