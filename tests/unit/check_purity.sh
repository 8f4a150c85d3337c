#!/bin/sh
# check_purity.sh - the control core and the schedules use no clock, no I/O and no allocation:
# nm -u on their objects against a short list. core_alloc alone may allocate.
#
#   tests/unit/check_purity.sh [DIR-WITH-daemon-AND-transport]    (default: where make check runs)
set -eu

dir=${1:-.}
bad=0
# gcc turns memory and string idioms into the first group. The sanitizers' and the compiler's own
# run-time are not calls of ours.
pure='memcpy|memmove|memset|memcmp|strlen|strcmp|strncmp|strnlen|abort'
runtime='_GLOBAL_OFFSET_TABLE_|__stack_chk_fail|__asan_.*|__ubsan_.*|__sanitizer_.*|__gcov_.*|__tsan_.*'

objects=$(find "$dir/daemon" "$dir/transport" -path '*.libs/*' \
    \( -name '*core.o' -o -name '*core_*.o' -o -name '*schedule*.o' \) 2>/dev/null | sort)
[ -n "$objects" ] || objects=$(find "$dir" \( -name 'core.o' -o -name 'core_*.o' \
    -o -name 'schedule*.o' \) | sort)
[ -n "$objects" ] || {
    echo "check_purity: no objects under $dir: run make first" >&2
    exit 1
}

# what these objects give each other
own=$(for o in $objects; do nm -g --defined-only "$o"; done | awk 'NF == 3 { print $3 }' | sort -u)

n=0
for o in $objects; do
    case $o in
    *core_alloc.o) allowed="$pure|calloc|free" ;;
    *) allowed=$pure ;;
    esac
    n=$((n + 1))
    for symbol in $(nm -u "$o" | awk '{ print $NF }' | sed 's/@.*//'); do
        if printf '%s\n' "$symbol" | grep -Eqx "$allowed|$runtime"; then
            continue
        fi
        printf '%s\n' "$own" | grep -qxF "$symbol" && continue
        echo "$o calls $symbol, which the decisions may not" >&2
        bad=1
    done
done
[ "$bad" = 0 ] && echo "check_purity: $n objects are pure"
exit "$bad"
