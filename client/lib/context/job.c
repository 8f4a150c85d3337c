/* job.c - which job a group's name belongs to. Programs use fixed names, and two jobs of one user
 * must not meet by accident: commd gets "JOB/NAME". The job is what the launcher of this process
 * says in its environment, so that all ranks say the same:
 *
 *   - The launcher nearest to the process comes first: torchrun and mpirun run inside of Slurm's
 *     jobs.
 *   - torchrun's id is "none" where the user has given none.
 *   - Slurm's own PMIx namespace names a step, and is not used. The steps of one allocation are one
 *     job: people start the parts of a job by one srun for each node. With mpirun the head node has
 *     no step, and other nodes have.
 *   - Kubernetes sets no such variable, so the user sets COMMD_JOB.
 *
 * Where no variable is set there is no job: two shells of a person share no id, and their ranks
 * have to meet. A name that begins with "/" is the user's: it is taken without the "/" and without
 * a job. */
#include "client/lib/context/group.h"

#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *variable, *kind;
} launchers[] = {
    {"TORCHELASTIC_RUN_ID", "torchrun-"},
    {"PMIX_NAMESPACE", "mpi-"},
    {"SLURM_JOB_ID", "slurm-"},
};

/* *ret_variable: what says so. */
static const char *job_here(const char **ret_kind, const char **ret_variable)
{
    const char *job = getenv("COMMD_JOB");

    *ret_kind = "";
    *ret_variable = "COMMD_JOB";
    for (unsigned i = 0; i < ARRAY_LEN(launchers) && !job; i++) {
        job = getenv(launchers[i].variable);
        if (job && (!*job || !strcmp(job, "none") || !strncmp(job, "slurm.pmix.", 11)))
            job = NULL;
        *ret_kind = launchers[i].kind;
        *ret_variable = launchers[i].variable;
    }
    return job ? job : "";
}

int job_name_of(const char *name, char ret_name[MSG_GROUP_MAX])
{
    const char *kind = "", *variable = "", *job = "";
    struct commd_error *e = error_mine();
    size_t len, bad;

    if (name && *name == '/')
        name++;
    else
        job = job_here(&kind, &variable);
    if (!name || !*name || strlen(name) >= MSG_GROUP_MAX)
        return error_set(e, COMMD_E_INVALID, "join", "group name: 1 to %d bytes are allowed",
                         MSG_GROUP_MAX - 1);
    if (!codec_text_clean(name, strlen(name), &bad))
        return error_set(e, COMMD_E_INVALID, "join",
                         "group name: byte %zu is a control character or not UTF-8", bad);
    if (!codec_text_clean(job, strlen(job), &bad))
        return error_set(e, COMMD_E_INVALID, "join",
                         "%s: byte %zu is a control character or not UTF-8; COMMD_JOB names the "
                         "job instead",
                         variable, bad);
    if (!*job)
        kind = "";
    len = strlen(kind) + strlen(job) + (*job != 0) + strlen(name);
    if (len >= MSG_GROUP_MAX)
        return error_set(e, COMMD_E_INVALID, "join",
                         "group name: %zu bytes with its job (%s) and a \"/\" before it, 1 to %d "
                         "are allowed: set COMMD_JOB to a shorter name of the job, or begin the "
                         "group's with \"/\", which is without a job",
                         len, variable, MSG_GROUP_MAX - 1);
    snprintf(ret_name, MSG_GROUP_MAX, "%s%s%s%s", kind, job, *job ? "/" : "", name);
    return 0;
}
