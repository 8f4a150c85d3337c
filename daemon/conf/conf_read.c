/* conf_read.c - walking the YAML of the configuration.
 *
 * libyaml gives events with positions; this file walks them by recursive descent over the
 * three shapes that exist: the top (a map of sections), a section (a map of keys) and an entry
 * of cluster.nodes (a map of keys, too). Rows and values are known to conf_keys.c and
 * conf_value.c, rules between keys to conf_check.c, the list of errors to conf_error.c.
 *
 * Reading goes on after an error, so that one run reports them all; only malformed YAML, too
 * deep nesting and a full list end it. The event reader is used, not libyaml's document
 * loader, because it keeps no tree: memory is bounded by the file (CONF_MAX_BYTES) and the
 * nesting (MAX_DEPTH), and an alias is an event like any other, never expanded. Aliases,
 * anchors and tags are refused: nothing here needs them, and each is a way to make a file
 * mean something else than it shows. */
#include "daemon/conf/conf_keys.h"

#include <stdio.h>
#include <yaml.h>

enum { MAX_DEPTH = 16 };

struct reader {
    yaml_parser_t parser;
    struct conf *conf;
    struct conf_src *src;
    struct conf_errors *errors;
    bool stopped; /* no further events; the reason is in errors */
};

/* A map whose keys are @keys: a section, or an entry of cluster.nodes. */
struct map {
    const char *label; /* "timeouts", "cluster.nodes" */
    const struct conf_key *keys;
    unsigned nkeys;
    void *base;             /* of the fields */
    unsigned *line;         /* per key, where the key stood; 0: not given */
    bool *old_name;         /* per key: the file has the key's old name; NULL: no key has one */
    struct conf_pos *value; /* per key */
    bool *bad;              /* per key */
};

static struct conf_pos pos_of(yaml_mark_t mark)
{
    return (struct conf_pos){(unsigned)mark.line + 1, (unsigned)mark.column + 1};
}

/* Adds an error at the position of the event @ev_. */
#define report(r_, ev_, ...) conf_errors_add((r_)->errors, pos_of((ev_)->start_mark), __VA_ARGS__)

static const char *event_text(const yaml_event_t *ev)
{
    return (const char *)ev->data.scalar.value;
}

/* What YAML calls null: nothing at all, or its two spellings, without quotes. */
static bool is_null(const yaml_event_t *ev)
{
    const char *text = event_text(ev);

    return ev->type == YAML_SCALAR_EVENT && ev->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (!text[0] || !strcmp(text, "~") || !strcmp(text, "null"));
}

static const char *shape_of(const yaml_event_t *ev)
{
    if (ev->type == YAML_MAPPING_START_EVENT)
        return "a map";
    return ev->type == YAML_SEQUENCE_START_EVENT ? "a list" : "text";
}

/* ---- events ---------------------------------------------------------------------------------- */

/* libyaml counts characters, not bytes. */
static unsigned char char_at(const yaml_parser_t *p, size_t index)
{
    for (const unsigned char *at = p->input.string.start; at < p->input.string.end; at++)
        if ((*at & 0xc0) != 0x80 && index-- == 0) /* no continuation byte of UTF-8 */
            return *at;
    return '\0';
}

static void report_malformed(struct reader *r)
{
    const yaml_parser_t *p = &r->parser;
    struct conf_pos pos = pos_of(p->problem_mark);
    const unsigned char *at = p->input.string.start;
    char context[128] = "";
    const char *tab = "", *allowed = "the YAML of commd.yaml(5)";
    unsigned char c;

    if (p->error == YAML_MEMORY_ERROR) {
        r->errors->oom = true;
        return;
    }
    if (p->error == YAML_READER_ERROR) { /* has an offset, no mark */
        pos = (struct conf_pos){1, 1};
        for (size_t i = 0; i < p->problem_offset && at + i < p->input.string.end; i++) {
            pos.line += at[i] == '\n';
            pos.col = at[i] == '\n' ? 1 : pos.col + 1;
        }
    } else if (p->context) {
        snprintf(context, sizeof(context), " %s of line %zu", p->context, p->context_mark.line + 1);
    }
    c = char_at(p, p->problem_mark.index);
    if (p->error == YAML_SCANNER_ERROR && c == '\t')
        tab = " (a tab)", allowed = "spaces to indent";
    else if (p->error == YAML_PARSER_ERROR && c == ':')
        allowed = "quotes around a value that begins with ':', such as \"::1\"";
    conf_errors_add(r->errors, pos, "malformed YAML: %s%s%s; allowed: %s",
                    p->problem ? p->problem : "unknown problem", tab, context, allowed);
}

/* False at the end of what can be read. Anchors and tags are reported here, for whatever
 * they stand on. */
static bool next(struct reader *r, yaml_event_t *ret_ev)
{
    yaml_event_t ev;
    const yaml_char_t *anchor = NULL, *tag = NULL;

    yaml_event_delete(ret_ev);
    r->stopped |= r->errors->more || r->errors->oom;
    if (r->stopped)
        return false;
    if (!yaml_parser_parse(&r->parser, &ev)) {
        report_malformed(r);
        r->stopped = true;
        return false;
    }
    if (ev.type == YAML_SCALAR_EVENT)
        anchor = ev.data.scalar.anchor, tag = ev.data.scalar.tag;
    else if (ev.type == YAML_SEQUENCE_START_EVENT)
        anchor = ev.data.sequence_start.anchor, tag = ev.data.sequence_start.tag;
    else if (ev.type == YAML_MAPPING_START_EVENT)
        anchor = ev.data.mapping_start.anchor, tag = ev.data.mapping_start.tag;
    if (ev.type == YAML_ALIAS_EVENT || anchor)
        report(r, &ev, "anchors and aliases (\"&\", \"*\") are refused; allowed: the value itself");
    if (tag)
        report(r, &ev, "tags (\"!\") are refused; allowed: the value itself");
    *ret_ev = ev;
    return true;
}

/* Reads over the rest of the value that begins with @ev. */
static void skip(struct reader *r, const yaml_event_t *ev)
{
    _cleanup_(yaml_event_delete) yaml_event_t inner = {0};
    unsigned depth = ev->type == YAML_MAPPING_START_EVENT || ev->type == YAML_SEQUENCE_START_EVENT;

    while (depth > 0 && next(r, &inner)) {
        if (inner.type == YAML_MAPPING_END_EVENT || inner.type == YAML_SEQUENCE_END_EVENT)
            depth--;
        else if (inner.type == YAML_MAPPING_START_EVENT || inner.type == YAML_SEQUENCE_START_EVENT)
            depth++;
        if (depth > MAX_DEPTH) {
            report(r, &inner,
                   "nested too deeply, reading no further; allowed: the levels of commd.yaml(5)");
            r->stopped = true;
        }
    }
}

/* ---- maps ------------------------------------------------------------------------------------ */

static void read_nodes(struct reader *r, const struct conf_key *key, const yaml_event_t *ev,
                       bool *ret_bad);

static void report_unknown(struct reader *r, const struct map *map, const yaml_event_t *ev)
{
    char quoted[CONF_QUOTE_MAX], hint[160], names[256];

    conf_key_hint(map->label, event_text(ev), map->keys, map->nkeys, hint, sizeof(hint));
    conf_key_names(map->keys, map->nkeys, names, sizeof(names));
    report(r, ev, "unknown key %s %s%s%s; allowed: %s",
           conf_quote(event_text(ev), ev->data.scalar.length, quoted),
           map->keys ? "in " : "at the top", map->label, hint, names);
}

/* The key of the next pair of a map; false at the map's end. Pairs whose key is no text are
 * reported and read over. */
static bool next_key(struct reader *r, const char *label, yaml_event_t *ret_ev)
{
    while (next(r, ret_ev) && ret_ev->type != YAML_MAPPING_END_EVENT) {
        if (ret_ev->type == YAML_SCALAR_EVENT)
            return true;
        if (ret_ev->type != YAML_ALIAS_EVENT) /* already reported */
            report(r, ret_ev, "%s where a key of %s should be; allowed: plain text",
                   shape_of(ret_ev), label[0] ? label : "the file");
        skip(r, ret_ev);
        if (next(r, ret_ev))
            skip(r, ret_ev);
    }
    return false;
}

static void read_value(struct reader *r, const struct map *map, unsigned i, const yaml_event_t *ev)
{
    const struct conf_key *key = &map->keys[i];
    char why[CONF_QUOTE_MAX + 64], allowed[256];
    bool bad = true;

    map->value[i] = pos_of(ev->start_mark);
    conf_value_allowed(key, allowed, sizeof(allowed));
    if (ev->type == YAML_ALIAS_EVENT)
        ; /* already reported */
    else if (is_null(ev))
        conf_errors_add(r->errors, map->value[i],
                        "%s.%s has no value; allowed: %s; leave the line out for the default",
                        map->label, key->name, allowed);
    else if (key->type == CONF_NODES && ev->type == YAML_SEQUENCE_START_EVENT)
        read_nodes(r, key, ev, &bad);
    else if (key->type == CONF_NODES || ev->type != YAML_SCALAR_EVENT) {
        conf_errors_add(r->errors, map->value[i],
                        "%s.%s is %s, which is the wrong type; "
                        "allowed: %s",
                        map->label, key->name, shape_of(ev), allowed);
        skip(r, ev);
    } else if (conf_value_parse(key, event_text(ev), ev->data.scalar.length, map->base, why,
                                sizeof(why)) == 0)
        bad = false;
    else
        conf_errors_add(r->errors, map->value[i], "%s.%s %s; allowed: %s", map->label, key->name,
                        why, allowed);
    map->bad[i] = bad;
}

static void report_duplicate(struct reader *r, const yaml_event_t *ev, const char *dotted,
                             unsigned first)
{
    report(r, ev, "duplicate key %s, first on line %u; allowed: each key once", dotted, first);
}

/* Scalar keys are compared as C strings: one with a NUL in it equals none of ours. */
static bool key_is(const yaml_event_t *ev, const char *name)
{
    return ev->data.scalar.length == strlen(name) && !strcmp(event_text(ev), name);
}

/* The key of @map that @ev names, by its name or by its old one; nkeys: none. */
static unsigned find_key(const struct map *map, const yaml_event_t *ev, bool *ret_old)
{
    *ret_old = false;
    for (unsigned i = 0; i < map->nkeys; i++) {
        const char *old = conf_key_old_name(&map->keys[i]);

        *ret_old = old && key_is(ev, old);
        if (*ret_old || key_is(ev, map->keys[i].name))
            return i;
    }
    return map->nkeys;
}

/* Key @i of @map stands at @ev once more, by its old name where @old. */
static void report_again(struct reader *r, const struct map *map, unsigned i,
                         const yaml_event_t *ev, bool old)
{
    const struct conf_key *key = &map->keys[i];
    char dotted[96];

    if (map->old_name && map->old_name[i] != old) {
        report(r, ev,
               "%s.%s was once called %s.%s, and both are given, the first on line %u; allowed: %s "
               "alone",
               map->label, key->name, map->label, conf_key_old_name(key), map->line[i], key->name);
        return;
    }
    snprintf(dotted, sizeof(dotted), "%s.%s", map->label, event_text(ev));
    report_duplicate(r, ev, dotted, map->line[i]);
}

static void read_map(struct reader *r, const struct map *map)
{
    _cleanup_(yaml_event_delete) yaml_event_t ev = {0};

    while (next_key(r, map->label, &ev)) {
        bool old;
        unsigned i = find_key(map, &ev, &old);

        if (i == map->nkeys || map->line[i]) {
            if (i == map->nkeys)
                report_unknown(r, map, &ev);
            else
                report_again(r, map, i, &ev, old);
            if (next(r, &ev))
                skip(r, &ev);
        } else {
            map->line[i] = pos_of(ev.start_mark).line;
            if (map->old_name)
                map->old_name[i] = old;
            if (next(r, &ev))
                read_value(r, map, i, &ev);
        }
    }
}

/* ---- cluster.nodes --------------------------------------------------------------------------- */

static int grow_nodes(struct reader *r)
{
    unsigned len = MIN(MAX(2 * r->src->nodes_len, 8u), (unsigned)CONF_MAX_NODES);
    struct conf_node *nodes;
    struct conf_node_src *src;

    if (r->conf->nnodes < r->src->nodes_len)
        return 0;
    nodes = reallocarray(r->conf->nodes, len, sizeof(*nodes));
    if (!nodes)
        return -ENOMEM;
    r->conf->nodes = nodes;
    src = reallocarray(r->src->nodes, len, sizeof(*src));
    if (!src)
        return -ENOMEM;
    r->src->nodes = src;
    r->src->nodes_len = len;
    return 0;
}

/* The entry counts only when it is complete; @ret_bad is set otherwise. */
static void read_node(struct reader *r, const yaml_event_t *ev, bool *ret_bad)
{
    struct conf_node node = {.port = CONF_DEFAULT_PORT};
    struct conf_node_src src = {.entry = pos_of(ev->start_mark)};
    bool bad[CONF_NODE_KEYS] = {0};
    const struct map map = {.label = "cluster.nodes",
                            .keys = conf_node_keys,
                            .nkeys = CONF_NODE_KEYS,
                            .base = &node,
                            .line = src.line,
                            .value = src.value,
                            .bad = bad};
    char allowed[256];

    read_map(r, &map);
    for (unsigned i = 0; i < CONF_NODE_KEYS; i++) {
        if (!src.line[i] && i != CONF_NODE_PORT && !r->stopped) {
            conf_value_allowed(&conf_node_keys[i], allowed, sizeof(allowed));
            conf_errors_add(r->errors, src.entry,
                            "an entry of cluster.nodes without %s; allowed: %s: %s",
                            conf_node_keys[i].name, conf_node_keys[i].name, allowed);
            bad[i] = true;
        }
        *ret_bad |= bad[i];
    }
    if (grow_nodes(r) < 0) {
        r->errors->oom = true;
        return;
    }
    r->src->nodes[r->conf->nnodes] = src;
    r->conf->nodes[r->conf->nnodes++] = node;
}

static void read_nodes(struct reader *r, const struct conf_key *key, const yaml_event_t *start,
                       bool *ret_bad)
{
    _cleanup_(yaml_event_delete) yaml_event_t ev = {0};
    bool bad = false;
    char allowed[256];

    conf_value_allowed(key, allowed, sizeof(allowed));
    while (next(r, &ev) && ev.type != YAML_SEQUENCE_END_EVENT) {
        if (ev.type == YAML_MAPPING_START_EVENT && r->conf->nnodes < CONF_MAX_NODES) {
            read_node(r, &ev, &bad);
            continue;
        }
        if (ev.type == YAML_MAPPING_START_EVENT) {
            report(r, &ev, "more nodes than commd can keep; allowed: %s", allowed);
            r->stopped = true;
        } else if (ev.type != YAML_ALIAS_EVENT) {
            report(r, &ev, "an entry of cluster.nodes is %s, which is the wrong type; allowed: %s",
                   shape_of(&ev), allowed);
        }
        skip(r, &ev);
        bad = true;
    }
    if (r->conf->nnodes == 0 && !bad && !r->stopped) {
        report(r, start, "cluster.nodes is empty; allowed: %s; leave the line out for one node",
               allowed);
        bad = true;
    }
    *ret_bad = bad;
}

/* ---- the file -------------------------------------------------------------------------------- */

static void read_section(struct reader *r, unsigned first, unsigned nkeys, const yaml_event_t *ev)
{
    const struct map map = {.label = conf_keys[first].section,
                            .keys = &conf_keys[first],
                            .nkeys = nkeys,
                            .base = r->conf,
                            .line = &r->conf->line[first],
                            .old_name = &r->conf->old_name[first],
                            .value = &r->src->value[first],
                            .bad = &r->src->bad[first]};
    char names[256];

    if (ev->type == YAML_MAPPING_START_EVENT) {
        read_map(r, &map);
    } else if (ev->type != YAML_ALIAS_EVENT && !is_null(ev)) { /* "limits:" alone is fine */
        conf_key_names(map.keys, map.nkeys, names, sizeof(names));
        report(r, ev, "%s is %s, which is the wrong type; allowed: a map of %s", map.label,
               shape_of(ev), names);
        skip(r, ev);
    }
}

static void read_top(struct reader *r)
{
    _cleanup_(yaml_event_delete) yaml_event_t ev = {0};
    const struct map top = {.label = ""};
    unsigned section_line[CONF_MAX_KEYS] = {0}; /* by the section's first key */

    while (next_key(r, "", &ev)) {
        unsigned line = pos_of(ev.start_mark).line, first, nkeys = 0;

        for (first = 0; first < conf_nkeys; first++)
            if (key_is(&ev, conf_keys[first].section))
                break;
        if (first == conf_nkeys)
            report_unknown(r, &top, &ev);
        else if (section_line[first])
            report_duplicate(r, &ev, conf_keys[first].section, section_line[first]);
        if (first == conf_nkeys || section_line[first]) {
            if (next(r, &ev))
                skip(r, &ev);
            continue;
        }
        section_line[first] = line;
        while (first + nkeys < conf_nkeys &&
               !strcmp(conf_keys[first].section, conf_keys[first + nkeys].section))
            nkeys++;
        if (next(r, &ev))
            read_section(r, first, nkeys, &ev);
    }
}

static void read_stream(struct reader *r)
{
    _cleanup_(yaml_event_delete) yaml_event_t ev = {0};
    char names[256];

    /* stream start; document start, or stream end for a file without content */
    if (!next(r, &ev) || !next(r, &ev) || ev.type == YAML_STREAM_END_EVENT || !next(r, &ev))
        return;
    if (ev.type == YAML_MAPPING_START_EVENT) {
        read_top(r);
    } else if (ev.type != YAML_ALIAS_EVENT && !is_null(&ev)) {
        conf_key_names(NULL, 0, names, sizeof(names));
        report(r, &ev, "the file is %s, which is the wrong type; allowed: a map of %s",
               shape_of(&ev), names);
        skip(r, &ev);
    }
    if (!next(r, &ev) || !next(r, &ev) || ev.type == YAML_STREAM_END_EVENT)
        return;
    report(r, &ev, "a second document begins here; allowed: one per file");
}

/* If the file gives no limit for one user, that limit is at most half of the limit for all. */
static void keep_shares(struct conf *conf, const struct conf_src *src)
{
    if (!src->value[conf_key_index("limits.max_clients_per_user")].line)
        conf->max_clients_per_user =
            MIN(conf->max_clients_per_user, MAX(conf->max_clients / 2, 1u));
    if (!src->value[conf_key_index("limits.max_groups_per_user")].line)
        conf->max_groups_per_user = MIN(conf->max_groups_per_user, MAX(conf->max_groups / 2, 1u));
}

void conf_read(struct conf *conf, struct conf_src *src, struct conf_errors *errors,
               const char *text, size_t len)
{
    struct reader r = {.conf = conf, .src = src, .errors = errors};

    if (!yaml_parser_initialize(&r.parser)) {
        errors->oom = true;
        return;
    }
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, len);
    read_stream(&r);
    yaml_parser_delete(&r.parser);
    keep_shares(conf, src);
    if (!r.stopped)
        conf_check(conf, src, errors);
}
