/* fake_guard.c - a worker that touches memory which is not there breaks the device and not the
 * process. While a worker is in fake_guarded(), SIGSEGV and SIGBUS of this thread lead out of it;
 * all others go to whoever handled them before. */
#include "tests/fakecuda/fake.h"

#include <setjmp.h>
#include <signal.h>

static __thread sigjmp_buf *volatile out;
static struct sigaction before[2]; /* SIGSEGV, SIGBUS */

static void fault(int sig, siginfo_t *info, void *context)
{
    const struct sigaction *old = &before[sig == SIGBUS];

    if (out)
        siglongjmp(*out, 1);
    if (old->sa_flags & SA_SIGINFO)
        old->sa_sigaction(sig, info, context);
    else if (old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN)
        old->sa_handler(sig);
    else
        sigaction(sig, old, NULL); /* and the instruction faults again */
}

static void begin(void)
{
    struct sigaction sa = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};

    sigaction(SIGSEGV, &sa, &before[0]);
    sigaction(SIGBUS, &sa, &before[1]);
}

bool fake_guarded(void (*fn)(void *arg), void *arg)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    sigjmp_buf here;
    volatile bool ok = false;

    pthread_once(&once, begin);
    if (!sigsetjmp(here, 1)) {
        out = &here;
        fn(arg);
        ok = true;
    }
    out = NULL;
    return ok;
}
