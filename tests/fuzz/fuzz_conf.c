/* fuzz_conf.c - any bytes as a configuration file.
 *
 * Either a struct conf comes out that the daemon can rely on, or a text that a terminal and a
 * log can show: bounded, printable, each line with the file's name in front. What was taken
 * must also be taken again when each value is written back the way `commctl show config` prints
 * it, so that no value exists that a person could not write. */
#include "daemon/conf/conf.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FILE_NAME "fuzz.yaml"

static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "fuzz_conf: %s\n", what);
        abort();
    }
}

static void check_error(const char *error)
{
    unsigned lines = 0;

    must(error && error[0], "an error without text");
    for (const char *at = error; at; lines++) {
        must(!strncmp(at, FILE_NAME ":", strlen(FILE_NAME ":")), "a line without its file");
        at = strchr(at, '\n');
        at = at ? at + 1 : NULL;
    }
    must(lines <= 51, "too many lines");
    for (const char *at = error; *at; at++)
        must(*at == '\n' || (*at >= 0x20 && *at < 0x7f), "an unprintable character");
}

static void check_nodes(const struct conf *conf)
{
    must(conf->nnodes >= 1 && conf->nnodes <= CONF_MAX_NODES, "number of nodes");
    must(conf->self < conf->nnodes, "self");
    must(!strcmp(conf->nodes[conf->self].name, conf->node), "self is not this node");
    for (unsigned i = 0; i < conf->nnodes; i++) {
        must(conf->nodes[i].name[0] && conf->nodes[i].address[0] && conf->nodes[i].port,
             "an incomplete node");
        must(i == 0 || strcmp(conf->nodes[i - 1].name, conf->nodes[i].name) < 0,
             "nodes out of order");
    }
}

static void write_value(FILE *f, const struct conf *conf, const struct conf_row *row)
{
    if (strcmp(row->key, "cluster.nodes")) {
        fputc('\'', f);
        for (const char *c = row->value; *c; c++)
            fprintf(f, *c == '\'' ? "''" : "%c", *c);
        fputc('\'', f);
        return;
    }
    for (unsigned i = 0; i < conf->nnodes; i++) /* not from the row, which may be cut short */
        fprintf(f, "%s{name: '%s', address: '%s', port: %u}", i ? ", " : "[", conf->nodes[i].name,
                conf->nodes[i].address, conf->nodes[i].port);
    fputc(']', f);
}

/* The configuration as YAML, or NULL: a name beyond ASCII may hold characters that YAML takes
 * for line breaks. */
static char *write_back(const struct conf *conf)
{
    char section[sizeof(((struct conf_row *)0)->key)] = "";
    struct conf_row row;
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    must(f, "memory");
    for (unsigned i = 0; conf_row(conf, i, &row); i++) {
        char *key = strchr(row.key, '.') + 1;

        if (strncmp(section, row.key, (size_t)(key - row.key))) {
            fprintf(f, "%s%.*s: {", i ? "}, " : "{", (int)(key - 1 - row.key), row.key);
            snprintf(section, sizeof(section), "%.*s", (int)(key - row.key), row.key);
        } else {
            fprintf(f, ", ");
        }
        fprintf(f, "%s: ", key);
        write_value(f, conf, &row);
    }
    fprintf(f, "}}");
    must(fclose(f) == 0, "memory");
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c >= 0x80) {
            free(text);
            return NULL;
        }
    return text;
}

static void check_conf(const struct conf *conf)
{
    struct conf *again = NULL;
    struct conf_row row, row_again;
    char *text, *error = NULL, names[512];

    check_nodes(conf);
    must(conf->log_level <= CONF_LOG_DEBUG, "log level");
    must(conf->node_timeout_ms >= 2 * conf->heartbeat_ms && conf->heartbeat_ms, "heartbeat");
    text = write_back(conf);
    if (!text)
        return;
    if (conf_load(FILE_NAME, text, strlen(text), &again, &error) != 0) {
        fprintf(stderr, "%s\n%s\n", text, error ? error : "no error");
        abort();
    }
    conf_not_reloadable(conf, again, names, sizeof(names));
    must(!names[0], "another configuration");
    for (unsigned i = 0; conf_row(conf, i, &row) && conf_row(again, i, &row_again); i++)
        must(!strcmp(row.value, row_again.value), "another value");
    conf_free(again);
    free(text);
}

/* What a reload makes of it in a commd that runs with the defaults. */
static void check_keep(struct conf *conf)
{
    struct conf *old = NULL;
    char *error = NULL, names[512];

    must(conf_load(FILE_NAME, "", 0, &old, &error) == 0, "the defaults");
    must(conf_keep(conf, old) == 0, "memory");
    conf_not_reloadable(old, conf, names, sizeof(names));
    must(!names[0], "a setting that needs a restart");
    check_conf(conf);
    conf_free(old);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct conf *conf = NULL;
    char *error = NULL;

    if (conf_load(FILE_NAME, size ? (const char *)data : "", size, &conf, &error) == 0) {
        must(!error, "an error with a configuration");
        check_conf(conf);
        check_keep(conf);
    } else {
        must(!conf, "a configuration with an error");
        check_error(error);
    }
    conf_free(conf);
    free(error);
    return 0;
}
