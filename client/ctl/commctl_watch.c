/* commctl_watch.c - the same answer again and again, until it is interrupted.
 *
 * On a terminal: in its alternate screen, so that what was there comes back; a frame is drawn over
 * the last one, cut to the size of the terminal. The handler of a signal that ends or stops us
 * gives the terminal back; it only writes. Elsewhere: a line with the time and the answer, or with
 * --json only the answers.
 *
 * A commd that goes away is waited for, and that is said; one that was never there is an error. */
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <time.h>

#include "client/ctl/commctl.h"

#define ENTER "\033[?1049h\033[?25l\033[?7l" /* alternate screen, no cursor, no wrapping */
#define LEAVE "\033[?7h\033[?25h\033[?1049l"

static void put_all(const char *text)
{
    size_t len = strlen(text);
    ssize_t n;

    while (len && (n = write(STDOUT_FILENO, text, len)) > 0) {
        text += n;
        len -= (size_t)n;
    }
}

/* ---- signals ------------------------------------------------------------------------------- */

static void on_end(int signo)
{
    put_all(LEAVE);
    signal(signo, SIG_DFL);
    raise(signo); /* delivered when this returns */
}

static void on_stop(int signo)
{
    int saved = errno;

    put_all(LEAVE);
    kill(getpid(), SIGSTOP);
    put_all(ENTER);
    errno = saved;
}

static void on_resize(int signo)
{
    /* it ends the sleep, and the next frame is drawn */
}

static void catch_signals(void)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    struct sigaction action = {.sa_handler = on_end};

    for (size_t i = 0; i < ARRAY_LEN(ends); i++)
        sigaction(ends[i], &action, NULL);
    action.sa_handler = on_stop;
    action.sa_flags = SA_RESTART;
    sigaction(SIGTSTP, &action, NULL);
    action.sa_handler = on_resize;
    action.sa_flags = 0;
    sigaction(SIGWINCH, &action, NULL);
}

/* ---- a frame --------------------------------------------------------------------------------- */

/* Without line @rows and what follows; what is right of the terminal it leaves out itself. */
static void draw(const char *head, const char *why, const char *text)
{
    struct winsize size = {.ws_row = 24};
    char *frame = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&frame, &len);
    unsigned rows;

    if (!out)
        return;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) || !size.ws_row)
        size.ws_row = 24;
    rows = size.ws_row - 1u;
    fprintf(out, "\033[H%s\033[K", head);
    if (*why && rows) {
        fprintf(out, "\r\n%s\033[K", why);
        rows--;
    }
    for (; *text && rows; rows--) {
        size_t n = strcspn(text, "\n");

        fprintf(out, "\r\n%.*s\033[K", (int)n, text);
        text += n + (text[n] == '\n');
    }
    fputs("\033[J", out);
    if (fclose(out) == 0)
        put_all(frame);
    free(frame);
}

/* What @once prints, in memory. */
static int capture(struct options *turn, watch_fn *once, const void *arg, char **ret_text)
{
    FILE *terminal = stdout;
    size_t len;
    int r = EXIT_NOT_ASKED;

    fflush(stdout);
    stdout = open_memstream(ret_text, &len);
    if (stdout) {
        r = once(arg, turn);
        fclose(stdout);
    }
    stdout = terminal;
    return r;
}

/* ---- watching -------------------------------------------------------------------------------- */

static void pause_for(int64_t ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

int watch(const struct options *o, watch_fn *once, const void *arg, const char *words)
{
    bool terminal = !o->show.json && isatty(STDOUT_FILENO), seen = false, away = false;
    char why[1024], head[512], now[32];

    if (terminal) {
        catch_signals();
        put_all(ENTER);
    }
    for (;; pause_for(o->repeat_ms)) {
        _cleanup_(freep) char *text = NULL;
        struct options turn = *o;
        bool missed;
        int r;

        if (!terminal && !o->show.json && !away)
            printf("%s%s\n", seen ? "\n" : "", time_ago(0, now));
        complain_to(why, sizeof(why));
        r = terminal ? capture(&turn, once, arg, &text) : once(arg, &turn);
        complain_to(NULL, 0);
        missed = r == EXIT_NOT_ASKED;
        if (missed && !(seen && turn.ask.gone)) {
            if (terminal)
                put_all(LEAVE);
            complain("%s", why);
            return r;
        }
        if (terminal) {
            snprintf(head, sizeof(head), "%s  every %g s: commctl %s", time_ago(0, now),
                     (double)o->repeat_ms / 1000, words);
            draw(head, why, text ? text : "");
        } else if (*why && !(away && missed)) {
            complain("%s", why);
        }
        away = missed;
        seen = true;
        if (!terminal && !flush_stdout())
            return EXIT_NOT_ASKED;
    }
}
