/* conf_value.c - text from the file <-> field of struct conf, one pair of functions per type.
 *
 * A value is taken exactly, or refused with a reason; nothing is rounded, cut or guessed. Durations
 * and sizes must have their unit, because "500" means seconds in one daemon and milliseconds in
 * another. Text that becomes a file name, an interface name or a variable of the engine's
 * environment may have only the characters that these need, so no later code has to quote it. All
 * functions are pure. */
#include "daemon/conf/conf_keys.h"
#include "shm/util/weight.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>

#define DIGITS             "0123456789"
#define LOWER              "abcdefghijklmnopqrstuvwxyz"
#define ALNUM              DIGITS LOWER "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define CREDENTIALS_PREFIX "$CREDENTIALS_DIRECTORY/"

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit time_units[] = {/* largest first: format takes the first that fits */
                                         {"h", 3600000},
                                         {"m", 60000},
                                         {"s", 1000},
                                         {"ms", 1},
                                         {NULL, 0}};
static const struct unit size_units[] = {{"T", UINT64_C(1) << 40},
                                         {"G", UINT64_C(1) << 30},
                                         {"M", UINT64_C(1) << 20},
                                         {"K", UINT64_C(1) << 10},
                                         {NULL, 0}};
static const char *const level_names[] = {"error", "warn", "info", "debug", NULL};
static const char *const bool_names[] = {"false", "true", NULL};

const char *conf_quote(const char *text, size_t len, char buf[CONF_QUOTE_MAX])
{
    enum { SHOWN = 60 };
    char *at = buf;

    *at++ = '"';
    for (size_t i = 0; i < len && i < SHOWN; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\')
            *at++ = (char)c;
        else
            at += sprintf(at, "\\x%02x", c);
    }
    strcpy(at, len > SHOWN ? "\"..." : "\"");
    return buf;
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* Saturates: a number that fits no uint64_t is out of every range anyway. */
static bool parse_number(const char *text, int base, uint64_t *ret_value, const char **ret_end)
{
    const char *digits = base == 8 ? "01234567" : DIGITS;
    size_t n = strspn(text, digits);
    uint64_t v = 0;

    for (size_t i = 0; i < n; i++)
        if (__builtin_mul_overflow(v, (uint64_t)base, &v) ||
            __builtin_add_overflow(v, (uint64_t)(text[i] - '0'), &v)) {
            v = UINT64_MAX;
            break;
        }
    *ret_value = v;
    *ret_end = text + n;
    return n > 0;
}

/* NULL when good, else what is wrong. */
static const char *parse_count(const struct conf_key *key, const char *text, uint64_t *ret_value)
{
    bool negative = text[0] == '-';
    const char *end;
    uint64_t v;

    if (!parse_number(text + negative, 10, &v, &end) || *end)
        return "not a whole number";
    if (negative || v < key->min || v > key->max)
        return "out of range";
    *ret_value = v;
    return NULL;
}

static const char *parse_with_unit(const struct conf_key *key, const struct unit *units,
                                   const char *what, const char *text, uint64_t *ret_value)
{
    const char *end;
    uint64_t v;

    if (!parse_number(text, 10, &v, &end))
        return what;
    for (; units->name; units++)
        if (!strcmp(end, units->name))
            break;
    if (!units->name)
        return *end ? what : "a number without a unit";
    if (__builtin_mul_overflow(v, units->factor, &v) || v < key->min || v > key->max)
        return "out of range";
    *ret_value = v;
    return NULL;
}

static const char *parse_mode(const struct conf_key *key, const char *text, uint64_t *ret_value)
{
    const char *end;
    uint64_t v;

    if (!parse_number(text, 8, &v, &end) || *end)
        return "not an octal mode";
    if (v < key->min || v > key->max || (v & 0600) != 0600)
        return "out of range";
    *ret_value = v;
    return NULL;
}

static const char *parse_word(const char *const *words, const char *text, uint64_t *ret_value)
{
    for (unsigned i = 0; words[i]; i++)
        if (!strcmp(words[i], text)) {
            *ret_value = i;
            return NULL;
        }
    return "";
}

static void format_with_unit(const struct unit *units, uint64_t v, char *buf, size_t len)
{
    for (; units->name; units++)
        if (v >= units->factor && v % units->factor == 0)
            break;
    if (units->name)
        snprintf(buf, len, "%" PRIu64 "%s", v / units->factor, units->name);
    else
        snprintf(buf, len, "%" PRIu64, v); /* no configured value: min is a whole unit */
}

/* ---- text: NULL when good, else what is wrong ------------------------------------------------ */

static const char *check_name(const char *text)
{
    if (!strchr(ALNUM, text[0]) || text[strspn(text, ALNUM "._-")])
        return "not a name";
    return NULL;
}

static const char *check_path(const struct conf_key *key, const char *text)
{
    bool credential = key->flags & CONF_CREDENTIAL &&
                      !strncmp(text, CREDENTIALS_PREFIX, strlen(CREDENTIALS_PREFIX));

    if (text[0] != '/' && !credential)
        return "not an absolute path";
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c < 0x20 || *c == 0x7f)
            return "with a control character in it";
    return NULL;
}

/* Letters as the kernel and the verbs library use them: "eth0.5@if3", "mlx5_0:1". */
static const char *check_device(const char *text)
{
    return text[strspn(text, ALNUM "._:@-")] ? "not the name of a device" : NULL;
}

static const char *check_fabric_name(const char *text)
{
    bool known = !strcmp(text, "auto") || !strcmp(text, "tcp") || !strcmp(text, "ucx");

    return known ? NULL : "not a fabric";
}

/* UCX also knows "^x" (all but x) and "x:aux". Refused: which transports are in use decides
 * whether the network must be trusted, so they have to be named. */
static const char *check_transport_names(const char *text)
{
    for (const char *at = text;;) {
        size_t n = strspn(at, LOWER DIGITS "_");

        if (n == 0)
            return "not a list of transports";
        if (!at[n])
            return NULL;
        if (at[n] != ',')
            return "not a list of transports";
        at += n + 1;
    }
}

/* As the kernel names its modules. Which there are, the engine finds out: it may be started on
 * another kernel than the one on which the file was checked. */
static const char *check_word(const char *text)
{
    return text[strspn(text, ALNUM "_-")] ? "not a word" : NULL;
}

bool conf_port_range(const char *text, unsigned *ret_low, unsigned *ret_high)
{
    const char *end;
    uint64_t low, high;

    if (!parse_number(text, 10, &low, &end) || *end != '-')
        return false;
    if (!parse_number(end + 1, 10, &high, &end) || *end)
        return false;
    *ret_low = (unsigned)MIN(low, UINT64_C(65536));
    *ret_high = (unsigned)MIN(high, UINT64_C(65536));
    return true;
}

static const char *check_port_range(const struct conf_key *key, const char *text)
{
    unsigned low, high;

    if (!conf_port_range(text, &low, &high))
        return "not a range of ports";
    if (low < key->min || high > key->max)
        return "out of range";
    return low > high ? "backwards" : NULL;
}

static const char *check_ipv6(const char *text)
{
    static const struct in6_addr any = IN6ADDR_ANY_INIT;
    const char *scope = strchr(text, '%'); /* of a link-local address: its interface */
    size_t n = scope ? (size_t)(scope - text) : strlen(text);
    char bare[CONF_ADDR_MAX];
    struct in6_addr v6;

    if (scope && (!scope[1] || scope[1 + strspn(scope + 1, ALNUM "._-")]))
        return "not an IPv6 address";
    memcpy(bare, text, n); /* fits: key->max was checked */
    bare[n] = '\0';
    if (inet_pton(AF_INET6, bare, &v6) != 1)
        return "not an IPv6 address";
    return memcmp(&v6, &any, sizeof(any)) ? NULL : "not the address of one node";
}

static const char *check_address(const char *text)
{
    struct in_addr v4;

    if (text[0] == '[')
        return "with brackets around it";
    if (strchr(text, ':'))
        return check_ipv6(text);
    if (!text[strspn(text, DIGITS ".")]) {
        if (inet_pton(AF_INET, text, &v4) != 1)
            return "not an IPv4 address";
        return v4.s_addr == htonl(INADDR_ANY) ? "not the address of one node" : NULL;
    }
    if (!strchr(ALNUM, text[0]) || text[strspn(text, ALNUM "._-")])
        return "not an address";
    return NULL;
}

/* "127.0.0.1:18480" or "[::1]:18480". A name is refused: at the start the resolver may not answer
 * yet, and what it answers would decide which machines can connect. */
bool conf_listen(const char *text, char ret_address[CONF_ADDR_MAX], uint16_t *ret_port)
{
    const char *colon = strrchr(text, ':'), *end;
    size_t len = colon ? (size_t)(colon - text) : 0;
    unsigned char bytes[sizeof(struct in6_addr)];
    bool v6 = text[0] == '[';
    uint64_t port;

    if (v6 && (len < 3 || text[len - 1] != ']'))
        return false;
    if (v6) {
        text++;
        len -= 2;
    }
    if (!len || len >= CONF_ADDR_MAX)
        return false;
    memcpy(ret_address, text, len);
    ret_address[len] = '\0';
    if (inet_pton(v6 ? AF_INET6 : AF_INET, ret_address, bytes) != 1)
        return false;
    if (!parse_number(colon + 1, 10, &port, &end) || *end || port < 1 || port > 65535)
        return false;
    *ret_port = (uint16_t)port;
    return true;
}

static const char *check_listen(const char *text)
{
    char address[CONF_ADDR_MAX];
    uint16_t port;

    return conf_listen(text, address, &port) ? NULL : "not an address and a port";
}

static const char *check_switch(const char *text)
{
    return !strcmp(text, "auto") || !strcmp(text, "yes") || !strcmp(text, "no") ? NULL : "unknown";
}

const char *conf_next_weight(const char **at, struct conf_weight *ret_weight)
{
    uint64_t uid, weight;

    if (!parse_number(*at, 10, &uid, at) || **at != '=')
        return "not a list of weights";
    if (!parse_number(*at + 1, 10, &weight, at) || (**at && **at != ','))
        return "not a list of weights";
    if (**at && !*++*at)
        return "not a list of weights";
    if (uid >= UINT32_MAX || weight < 1 || weight > USER_WEIGHT_MAX)
        return "out of range";
    *ret_weight = (struct conf_weight){(uint32_t)uid, (uint32_t)weight};
    return NULL;
}

static const char *check_weights(const char *text)
{
    const char *wrong = NULL;
    struct conf_weight w, earlier;

    for (const char *at = text; *at && !wrong;) {
        const char *entry = at;

        wrong = conf_next_weight(&at, &w);
        for (const char *p = text; p < entry && !wrong;)
            if (!conf_next_weight(&p, &earlier) && earlier.uid == w.uid)
                wrong = "with a user in it twice";
    }
    return wrong;
}

/* Length of the NCCL_NAME=VALUE at @text; 0: it is none. @ret_name: of what is before the '='. */
static size_t nccl_setting(const char *text, size_t *ret_name)
{
    size_t n = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"), end = strcspn(text, " ");

    *ret_name = n;
    for (size_t i = n; i < end; i++)
        if (text[i] < ' ' || text[i] > '~')
            return 0;
    return strncmp(text, "NCCL_", 5) || n <= 5 || text[n] != '=' || n + 1 >= end ? 0 : end;
}

static const char *check_nccl_env(const struct conf_key *key, const char *text)
{
    const char *next;

    if (strlen(text) > key->max)
        return "too long";
    for (const char *at = text; at; at = next) {
        size_t name, other, len = nccl_setting(at, &name);

        if (!len)
            return "not a list of settings";
        next = at[len] ? at + len + 1 : NULL;
        for (const char *p = text; p < at; p += nccl_setting(p, &other) + 1)
            if (nccl_setting(p, &other) && other == name && !memcmp(p, at, name))
                return "with a name in it twice";
    }
    return NULL;
}

/* ---- by type --------------------------------------------------------------------------------- */

static const char *parse_text(const struct conf_key *key, const char *text)
{
    if (!text[0])
        return key->flags & CONF_MAY_BE_EMPTY ? NULL : "";
    switch (key->type) {
    case CONF_NAME:
        return check_name(text);
    case CONF_PATH:
        return check_path(key, text);
    case CONF_DEVICE:
        return check_device(text);
    case CONF_FABRIC:
        return check_fabric_name(text);
    case CONF_TRANSPORTS:
        return check_transport_names(text);
    case CONF_PORT_RANGE:
        return check_port_range(key, text);
    case CONF_WORD:
        return check_word(text);
    case CONF_ADDRESS:
        return check_address(text);
    case CONF_SWITCH:
        return check_switch(text);
    case CONF_LISTEN:
        return check_listen(text);
    case CONF_WEIGHTS:
        return check_weights(text);
    case CONF_NCCL_ENV:
        return check_nccl_env(key, text);
    case CONF_BOOL:
    case CONF_LEVEL:
    case CONF_MODE:
    case CONF_PORT:
    case CONF_COUNT:
    case CONF_SIZE:
    case CONF_DURATION:
    case CONF_NODES:
        break;
    }
    return "not text";
}

static bool is_text(conf_type_t type)
{
    return type <= CONF_NCCL_ENV;
}

static const char *parse_value(const struct conf_key *key, const char *text, uint64_t *ret_value)
{
    switch (key->type) {
    case CONF_BOOL:
        return parse_word(bool_names, text, ret_value);
    case CONF_LEVEL:
        return parse_word(level_names, text, ret_value);
    case CONF_MODE:
        return parse_mode(key, text, ret_value);
    case CONF_PORT:
    case CONF_COUNT:
        return parse_count(key, text, ret_value);
    case CONF_SIZE:
        return parse_with_unit(key, size_units, "not a size", text, ret_value);
    case CONF_DURATION:
        return parse_with_unit(key, time_units, "not a duration", text, ret_value);
    case CONF_NAME:
    case CONF_PATH:
    case CONF_DEVICE:
    case CONF_FABRIC:
    case CONF_TRANSPORTS:
    case CONF_PORT_RANGE:
    case CONF_WORD:
    case CONF_ADDRESS:
    case CONF_SWITCH:
    case CONF_LISTEN:
    case CONF_WEIGHTS:
    case CONF_NCCL_ENV:
    case CONF_NODES:
        break;
    }
    return "not a number";
}

static void store_value(const struct conf_key *key, uint64_t v, void *field)
{
    bool flag = v;
    uint16_t port = (uint16_t)v;
    unsigned word = (unsigned)v;

    if (key->type == CONF_BOOL)
        memcpy(field, &flag, sizeof(flag));
    else if (key->type == CONF_PORT)
        memcpy(field, &port, sizeof(port));
    else if (key->size == sizeof(word))
        memcpy(field, &word, sizeof(word));
    else
        memcpy(field, &v, sizeof(v));
}

static uint64_t fetch_value(const struct conf_key *key, const void *field)
{
    bool flag;
    uint16_t port;
    unsigned word;
    uint64_t v;

    if (key->type == CONF_BOOL)
        return memcpy(&flag, field, sizeof(flag)), flag;
    if (key->type == CONF_PORT)
        return memcpy(&port, field, sizeof(port)), port;
    if (key->size == sizeof(word))
        return memcpy(&word, field, sizeof(word)), word;
    return memcpy(&v, field, sizeof(v)), v;
}

/* @text must end in a NUL at @len; another one inside is refused. */
int conf_value_parse(const struct conf_key *key, const char *text, size_t len, void *base,
                     char *why, size_t why_len)
{
    char *field = (char *)base + key->offset;
    char quoted[CONF_QUOTE_MAX];
    const char *wrong = NULL;
    uint64_t v = 0;

    if (memchr(text, '\0', len)) {
        wrong = "with a NUL byte in it";
    } else if (is_text(key->type)) {
        if (len > (key->type == CONF_PORT_RANGE ? key->size - 1 : key->max))
            wrong = "too long";
        else
            wrong = parse_text(key, text);
        if (!wrong) {
            memset(field, 0, key->size); /* the whole field: tests compare structs byte by byte */
            memcpy(field, text, len);
        }
    } else {
        wrong = parse_value(key, text, &v);
        if (!wrong)
            store_value(key, v, field);
    }
    if (!wrong)
        return 0;
    conf_quote(text, len, quoted);
    snprintf(why, why_len, "is %s%s%s", quoted, wrong[0] ? ", " : "", wrong);
    return CONF_E_BAD_VALUE;
}

static void format_nodes(const struct conf *conf, char *buf, size_t len)
{
    size_t at = 0;

    buf[0] = '\0';
    for (unsigned i = 0; i < conf->nnodes; i++) {
        const struct conf_node *node = &conf->nodes[i];
        bool v6 = strchr(node->address, ':');
        char one[CONF_NAME_MAX + CONF_ADDR_MAX + 16], count[32];
        int n = snprintf(one, sizeof(one), "%s%s %s%s%s:%u", i ? ", " : "", node->name,
                         v6 ? "[" : "", node->address, v6 ? "]" : "", node->port);
        int tail = snprintf(count, sizeof(count), ", ... (%u nodes)", conf->nnodes);

        if (at + (size_t)n + (i + 1 < conf->nnodes ? (size_t)tail : 0) >= len) {
            snprintf(buf + at, len - at, "%s", count);
            return;
        }
        memcpy(buf + at, one, (size_t)n + 1);
        at += (size_t)n;
    }
}

void conf_value_format(const struct conf_key *key, const void *base, char *buf, size_t len)
{
    const char *field = (const char *)base + key->offset;

    if (key->type == CONF_NODES)
        format_nodes(base, buf, len);
    else if (is_text(key->type))
        snprintf(buf, len, "%s", field);
    else if (key->type == CONF_BOOL)
        snprintf(buf, len, "%s", bool_names[fetch_value(key, field)]);
    else if (key->type == CONF_LEVEL)
        snprintf(buf, len, "%s", level_names[fetch_value(key, field)]);
    else if (key->type == CONF_MODE)
        snprintf(buf, len, "0%o", (unsigned)fetch_value(key, field));
    else if (key->type == CONF_SIZE)
        format_with_unit(size_units, fetch_value(key, field), buf, len);
    else if (key->type == CONF_DURATION)
        format_with_unit(time_units, fetch_value(key, field), buf, len);
    else
        snprintf(buf, len, "%" PRIu64, fetch_value(key, field));
}

static void unit_range(const struct conf_key *key, const struct unit *units, const char *names,
                       char *buf, size_t len)
{
    char low[32], high[32];

    format_with_unit(units, key->min, low, sizeof(low));
    format_with_unit(units, key->max, high, sizeof(high));
    snprintf(buf, len, "%s to %s, a whole number and its unit (%s)", low, high, names);
}

void conf_value_allowed(const struct conf_key *key, char *buf, size_t len)
{
    switch (key->type) {
    case CONF_NAME:
        snprintf(buf, len,
                 "1 to %" PRIu64 " letters, digits, '.', '_' or '-', first a letter "
                 "or digit",
                 key->max);
        return;
    case CONF_PATH:
        snprintf(buf, len, "an absolute path of at most %" PRIu64 " bytes%s", key->max,
                 key->flags & CONF_MAY_BE_EMPTY ? ", or \"\" for none" : "");
        return;
    case CONF_DEVICE:
        snprintf(buf, len,
                 "one network device such as eth0 or mlx5_0:1, or \"\" for the one "
                 "that holds this node's address");
        return;
    case CONF_FABRIC:
        snprintf(buf, len, "auto, tcp, ucx");
        return;
    case CONF_TRANSPORTS:
        snprintf(buf, len, "names of UCX transports joined by commas, such as tcp or rc,ud");
        return;
    case CONF_PORT_RANGE:
        snprintf(buf, len, "LOW-HIGH within %" PRIu64 "-%" PRIu64, key->min, key->max);
        return;
    case CONF_WORD:
        snprintf(buf, len,
                 "auto, system, or a name that the kernel has such as cubic: 1 to %" PRIu64
                 " letters, digits, '_' or '-'",
                 key->max);
        return;
    case CONF_ADDRESS:
        snprintf(buf, len,
                 "an IPv4 address, an IPv6 address without brackets, or a host name, "
                 "of at most %" PRIu64 " bytes",
                 key->max);
        return;
    case CONF_SWITCH:
        snprintf(buf, len, "auto, yes, no");
        return;
    case CONF_LISTEN:
        snprintf(buf, len,
                 "ADDRESS:PORT such as 127.0.0.1:18480, IPv6 in brackets such as [::1]:18480, or "
                 "\"\" for none");
        return;
    case CONF_WEIGHTS:
        snprintf(
            buf, len,
            "UID=WEIGHT joined by commas, weights 1 to %d, such as 1001=30,1002=5, or \"\" for "
            "none",
            USER_WEIGHT_MAX);
        return;
    case CONF_NCCL_ENV:
        snprintf(buf, len,
                 "NCCL_NAME=VALUE, one or more with a space between them, of at most %" PRIu64
                 " bytes, such as NCCL_DEBUG=WARN, or \"\" for none",
                 key->max);
        return;
    case CONF_BOOL:
        snprintf(buf, len, "true, false");
        return;
    case CONF_LEVEL:
        snprintf(buf, len, "error, warn, info, debug");
        return;
    case CONF_MODE:
        snprintf(buf, len, "0%o to 0%o, octal, with read and write for the owner",
                 (unsigned)key->min, (unsigned)key->max);
        return;
    case CONF_PORT:
    case CONF_COUNT:
        snprintf(buf, len, "%" PRIu64 " to %" PRIu64, key->min, key->max);
        return;
    case CONF_SIZE:
        unit_range(key, size_units, "K, M, G, T", buf, len);
        return;
    case CONF_DURATION:
        unit_range(key, time_units, "ms, s, m, h", buf, len);
        return;
    case CONF_NODES:
        snprintf(buf, len, "a list of %" PRIu64 " to %" PRIu64 " maps {name, address, port}",
                 key->min, key->max);
        return;
    }
}
