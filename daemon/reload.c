/* reload.c - reads the configuration again while commd runs, for SIGHUP or commctl reload.
 *
 * A file that is wrong changes nothing. If it is right, all settings that can change in a running
 * commd take their new values. The others keep their values until commd is started again, and are
 * named. The keys of the cluster are read again, too. If either file is wrong, both are refused.
 *
 * It is called between two steps of the core, or from an action of the core: core_reconfigure()
 * decides nothing by itself. */
#include "daemon/daemon.h"

#include <stdarg.h>
#include <stdio.h>

#include "daemon/link/engine_spawn.h"
#include "daemon/process/log.h"
#include "daemon/process/notify.h"

/* Writes all lines of @error into the log, and the first one into @ret. */
static void tell_error(const char *error, char *ret, size_t cap)
{
    snprintf(ret, cap, "%.*s", (int)strcspn(error, "\n"), error);
    while (*error) {
        size_t n = strcspn(error, "\n");

        log_error("%.*s", (int)n, error);
        error += n + (error[n] == '\n');
    }
}

struct setting_names { /* of settings */
    char text[MSG_TEXT_MAX / 2];
};

/* NULL: the file is wrong, and the log says why. @ret_keys: names of settings that keep their
 * values. @ret_waits: of those that the engine or commd-gpu takes when it is started anew. */
static struct conf *load_changed(struct daemon *d, struct setting_names *ret_keys,
                                 struct setting_names *ret_waits, char *ret_why, size_t why_cap)
{
    _cleanup_(freep) char *error = NULL;
    struct conf *conf = NULL;

    if (conf_load(d->config_file, NULL, 0, &conf, &error)) {
        tell_error(error ? error : "out of memory", ret_why, why_cap);
        log_error("the new configuration is wrong -> keeping the old one");
        return NULL;
    }
    conf_not_reloadable(d->conf, conf, ret_keys->text, sizeof(ret_keys->text));
    if (conf_keep(conf, d->conf) == 0) {
        conf_idle_changes(d->conf, conf, ret_waits->text, sizeof(ret_waits->text));
        return conf;
    }
    tell_error("out of memory", ret_why, why_cap);
    return conf_free(conf);
}

/* False: the file of the keys is wrong, and the log says why. */
static bool load_changed_keys(const struct daemon *d, const struct conf *conf,
                              struct conf_keys *ret_keys, char *ret_why, size_t why_cap)
{
    _cleanup_(freep) char *error = NULL;

    if (!d->peers || d->insecure || conf_load_keys(conf, ret_keys, &error) == 0)
        return true;
    tell_error(error ? error : "out of memory", ret_why, why_cap);
    log_error("the cluster key cannot be used -> keeping the old one, and the old configuration");
    return false;
}

static void take_keys(struct daemon *d, const struct conf_keys *keys)
{
    struct peer_links_keys names;

    peer_links_set_keys(d->peers, keys);
    peer_links_keys(d->peers, d->conf->self, &names);
    log_info("reload -> connections to other nodes are made by key %s%s%s", names.key,
             *names.other ? ", and accepted by key " : "", names.other);
}

/* What runs is replaced by what is started now, as soon as nobody needs it: core_renew.c. */
static void take_programs(struct daemon *d)
{
    struct program program;

    if (d->engine) {
        program_engine(d->conf, d->device, &program);
        engine_link_set_program(d->engine, &program);
    }
    if (d->gpu) {
        program_gpu(d->conf, &program);
        engine_link_set_program(d->gpu, &program);
    }
}

static void take_conf(struct daemon *d, struct conf *conf)
{
    struct core_config config;

    conf_free(d->conf);
    d->conf = conf;
    daemon_core_config(d, &config); /* what it says about GPUs was decided at the start */
    core_reconfigure(d->core, &config);
    take_programs(d);
    listener_set_limits(d->listener, conf->max_clients, conf->max_clients_per_user);
    if (d->peers)
        peer_links_set_timeout(d->peers, conf->node_timeout_ms);
    log_set_level(conf->log_level);
    payers_read(d);
}

static enum reload reload(struct daemon *d, char *ret_text, size_t cap)
{
    struct conf_keys keys = {0};
    struct setting_names kept, waits;
    struct conf *conf = load_changed(d, &kept, &waits, ret_text, cap);

    if (conf && !load_changed_keys(d, conf, &keys, ret_text, cap)) {
        explicit_bzero(&keys, sizeof(keys));
        conf = conf_free(conf);
    }
    if (!conf) {
        daemon_note(d, "config", "the new configuration was refused; the log says why");
        return RELOAD_REFUSED;
    }
    take_conf(d, conf);
    if (keys.n)
        take_keys(d, &keys);
    explicit_bzero(&keys, sizeof(keys));
    snprintf(ret_text, cap, "configuration %s reloaded%s%s%s%s%s%s", conf->file,
             *kept.text ? ", but for " : "", kept.text, *kept.text ? ": that needs a restart" : "",
             *waits.text ? "; " : "", waits.text,
             *waits.text ? ": as soon as the engine, or commd-gpu, has nothing to do" : "");
    log_write(*kept.text ? CONF_LOG_WARN : CONF_LOG_INFO, "reload -> %s", ret_text);
    daemon_note(d, "config", "%s", ret_text);
    return *kept.text ? RELOAD_IN_PART : RELOAD_DONE;
}

enum reload daemon_reload(struct daemon *d, char *ret_text, size_t cap)
{
    enum reload result;
    struct timespec now;

    if (!d->config_file[0]) {
        snprintf(ret_text, cap, "nothing to reload: this commd has no configuration file");
        log_info("reload -> %s", ret_text);
        return RELOAD_REFUSED;
    }
    /* To the microsecond: systemd compares it with the time at which it asked. */
    clock_gettime(CLOCK_MONOTONIC, &now);
    notify_send("RELOADING=1\nMONOTONIC_USEC=%lld",
                (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000);
    result = reload(d, ret_text, cap);
    notify_send("READY=1");
    return result;
}
