/* conf_keys.h - private to this folder: the table of keys, where a value stood in the file, and the
 * list of what is wrong with it. */
#ifndef COMMD_CONF_KEYS_H
#define COMMD_CONF_KEYS_H

#include "daemon/conf/conf.h"

enum { CONF_E_BAD_VALUE = 1 };

typedef enum {
    CONF_NAME,
    CONF_PATH,
    CONF_DEVICE,
    CONF_FABRIC,
    CONF_TRANSPORTS,
    CONF_PORT_RANGE,
    CONF_WORD,
    CONF_ADDRESS,
    CONF_ENCRYPTION,
    CONF_THREADS,
    CONF_AUTHENTICATION,
    CONF_SWITCH,
    CONF_LISTEN,
    CONF_WEIGHTS,
    CONF_NCCL_ENV,
    CONF_BOOL,
    CONF_LEVEL,
    CONF_MODE,
    CONF_PORT,
    CONF_COUNT,
    CONF_SIZE,
    CONF_DURATION,
    CONF_NODES,
} conf_type_t;

enum {
    CONF_MAY_BE_EMPTY = 1, /* "" is a value: the feature is off, or found at run time */
    CONF_CREDENTIAL = 2,   /* may begin with $CREDENTIALS_DIRECTORY/ */
    CONF_RELOAD = 4,       /* a running daemon can take a new value */
    CONF_IDLE = 8,         /* likewise, as soon as the engine, or commd-gpu, has nothing to do */
};

struct conf_key {
    const char *section;
    const char *name;
    conf_type_t type;
    unsigned flags;
    size_t offset; /* in struct conf, or in struct conf_node for conf_node_keys */
    size_t size;   /* of the field */
    uint64_t min, max;
    const char *fallback; /* the default, parsed like a value of the file; NULL: computed */
    const char *help;
};

/* All keys; those of one section stand together. */
extern const struct conf_key conf_keys[];
extern const unsigned conf_nkeys;
/* The keys of one entry of cluster.nodes; only name and address must be there. */
enum { CONF_NODE_NAME, CONF_NODE_ADDRESS, CONF_NODE_PORT, CONF_NODE_KEYS };
extern const struct conf_key conf_node_keys[CONF_NODE_KEYS];

/* Index in conf_keys of @key, "transport.device", which exists. */
unsigned conf_key_index(const char *key);
/* The name that @key had before and that files may still have, or NULL. */
const char *conf_key_old_name(const struct conf_key *key);
/* The host name up to the first dot; "localhost" if that cannot be a node's name. */
void conf_host_name(char ret_name[CONF_NAME_MAX]);

/* conf_value.c: text <-> field. @why: what is wrong, as text to stand after the key's name. */
int conf_value_parse(const struct conf_key *key, const char *text, size_t len, void *base,
                     char *why, size_t why_len);
void conf_value_format(const struct conf_key *key, const void *base, char *buf, size_t len);
void conf_value_allowed(const struct conf_key *key, char *buf, size_t len);
bool conf_listen(const char *text, char ret_address[CONF_ADDR_MAX], uint16_t *ret_port);
/* Reads one entry of a list of weights at *@at, and moves *@at behind it. NULL, or what is wrong.
 */
struct conf_weight {
    uint32_t uid, weight;
};
const char *conf_next_weight(const char **at, struct conf_weight *ret_weight);
bool conf_port_range(const char *text, unsigned *ret_low, unsigned *ret_high);
/* @text in quotes, cut short, nothing unprintable in it. Returns @buf. */
enum { CONF_QUOTE_MAX = 64 * 4 + 8 };
const char *conf_quote(const char *text, size_t len, char buf[CONF_QUOTE_MAX]);

/* conf_error.c: the list of what is wrong, at most CONF_MAX_ERRORS errors. */
enum { CONF_MAX_ERRORS = 50 };

struct conf_pos {
    unsigned line, col; /* from 1; 0 means the whole file */
};

struct conf_errors {
    struct conf_error {
        struct conf_pos pos;
        unsigned seq;
        char *text;
    } v[CONF_MAX_ERRORS]; /* owned texts */
    unsigned n;
    bool more; /* more errors were found than there is room for */
    bool oom;
};

void conf_errors_add(struct conf_errors *errors, struct conf_pos pos, const char *fmt, ...)
    _printf_(3, 4);
/* One line per error, sorted by position; NULL when memory ran out. */
char *conf_errors_text(struct conf_errors *errors, const char *file);
void conf_errors_fini(struct conf_errors *errors);

/* Where the values stood, for the rules that look at several of them. */
struct conf_node_src {
    struct conf_pos entry;
    struct conf_pos value[CONF_NODE_KEYS]; /* line 0: not given */
    unsigned line[CONF_NODE_KEYS];         /* of the key */
};

struct conf_src {
    struct conf_pos value[CONF_MAX_KEYS]; /* line 0: not given */
    bool bad[CONF_MAX_KEYS];              /* given, but already reported as wrong */
    struct conf_node_src *nodes;          /* owned; beside conf->nodes, in file order */
    unsigned nodes_len;                   /* allocated in both */
};

/* conf_read.c: fills @conf and @src from @text. If @text could be read to its end, conf_check()
 * follows. */
void conf_read(struct conf *conf, struct conf_src *src, struct conf_errors *errors,
               const char *text, size_t len);

/* conf_hint.c: a hint for a key that does not exist. @section "" is the top of the file. */
void conf_key_hint(const char *section, const char *name, const struct conf_key *keys,
                   unsigned nkeys, char *buf, size_t len);
/* Names of @keys, or of all sections for @keys NULL, joined by commas. */
void conf_key_names(const struct conf_key *keys, unsigned nkeys, char *buf, size_t len);

/* conf_check.c: the rules between keys. */
void conf_check(const struct conf *conf, const struct conf_src *src, struct conf_errors *errors);
bool conf_is_loopback(const char *address);

#endif
