#!/bin/sh
# Makes the kernels' images, and a C file that has them: image.h says which, and why.
#
#   image.sh SOURCES FOLDER NVCC PTXAS12 FLAGS
#
# PTXAS12 is an assembler of CUDA 12 beside an NVCC of CUDA 13, or empty. nvcc makes the same text
# for all architectures before 100, but for the number, so each assembler takes one of two texts.
# GPUs of 8.6 and 8.9 run the code of sm_80.
set -e
sources=$1 folder=$2 nvcc=$3 ptxas12=$4 flags=$5

release() { "$1" --version | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p'; }

knows() { "$nvcc" --list-gpu-arch | grep -qx "compute_$1"; }

text() { # ARCHITECTURE
    # shellcheck disable=SC2086
    "$nvcc" $flags -ptx -arch="compute_$1" -o "$folder/move.$1.new" \
        "$sources/transport/gpu/kernel/move.cu"
    mv "$folder/move.$1.new" "$folder/move.$1.ptx"
}

# No instruction of the text is newer: the assembler looks, as a driver would.
lower() {
    sed 's/^\.version .*/.version 7.7/' "$folder/move.75.ptx" >"$folder/move.low.ptx"
}

code() { # ARCHITECTURE TEXT ASSEMBLER...
    arch=$1 from=$2
    shift 2
    "$@" -arch="sm_$arch" -o "$folder/move.$arch.cubin" "$folder/move.$from.ptx"
}

old() {
    text 75
    lower
    for arch in 75 80 90; do
        if [ -n "$ptxas12" ]; then
            code $arch low "$ptxas12"
        else
            code $arch low "$nvcc" -cubin
        fi
    done
}

new() {
    ! knows 100 || {
        text 100
        code 100 100 "$nvcc" -cubin
        ! knows 120 || code 120 100 "$nvcc" -cubin
    }
}

bytes() { # NAME FILE
    printf '__asm__(".pushsection .rodata\\n.balign 64\\n.hidden %s\\n.global %s\\n%s:\\n"\n' \
        "$1" "$1" "$1"
    printf '        ".incbin \\"%s\\"\\n.byte 0\\n.popsection");\n' "$2"
    printf 'extern const unsigned char %s[] __attribute__((visibility("hidden")));\n' "$1"
}

rm -f "$folder"/move.*.ptx "$folder"/move.*.cubin
new &
old
wait $!
{
    echo '/* Made by image.sh. */'
    echo '#include "transport/gpu/kernel/image.h"'
    rows=
    for arch in 75 80 90 100 120; do
        [ -e "$folder/move.$arch.cubin" ] || continue
        by=$nvcc
        [ -z "$ptxas12" ] || [ $arch -ge 100 ] || by=$ptxas12
        bytes "commd_code_$arch" "$folder/move.$arch.cubin"
        rows="$rows    {GPU_IMAGE_CODE, $arch, \"CUDA $(release "$by")\", commd_code_$arch},
"
    done
    bytes commd_ptx "$folder/move.low.ptx"
    printf 'const struct gpu_image gpu_images[] = {\n%s' "$rows"
    printf '    {GPU_IMAGE_PTX, 75, "PTX 7.7", commd_ptx},\n    {GPU_IMAGE_CODE, 0, 0, 0},\n};\n'
} >"$folder/move_image.new"
mv "$folder/move_image.new" "$folder/move_image.c"
