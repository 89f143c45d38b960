/* LD_PRELOAD library of tools/older_cpu.py: the process sees a CPU without AVX-512, AMX and AVX-VNNI.
   With OLDER_CPU_KEEP_AVX512 set it sees AVX-512, but no bfloat16, no FP16 and no AMX.

   CPUID is made to fault (arch_prctl(2), ARCH_SET_CPUID). The handler of SIGSEGV runs the instruction and clears
   the bits of the hidden features. Bits and leaves: Intel's manual, volume 2, CPUID.
   Threads and forked children inherit the setting; a new program sets it again by LD_PRELOAD.
   The instructions still work: what a library chose before this one is loaded (libc's memcpy) stays. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012
#define BIT(n) (1u << (n))
#define ALL UINT32_MAX

typedef struct {
    uint32_t leaf, subleaf, eax, ebx, ecx, edx; /* subleaf ALL: every one; registers: bits to clear */
} Hidden;

static const Hidden BF16_AND_AMX[] = {
    {0x07, 0, .edx = BIT(22) | BIT(23) | BIT(24) | BIT(25)}, /* AMX-BF16, AVX512-FP16, AMX-TILE, AMX-INT8 */
    {0x07, 1, .eax = BIT(5) | BIT(21), .edx = BIT(8) | BIT(19)}, /* AVX512-BF16, AMX-FP16; AMX-COMPLEX, AVX10 */
    {0x0d, 0, .eax = BIT(17) | BIT(18)},                         /* the state of AMX */
    {0x1d, ALL, ALL, ALL, ALL, ALL},                             /* AMX tiles */
    {0x1e, ALL, ALL, ALL, ALL, ALL},                             /* AMX multiplication */
    {0x24, ALL, ALL, ALL, ALL, ALL},                             /* AVX10 */
    {0},
};

static const Hidden AVX512[] = {
    {0x07, 0, .ebx = BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31), /* F to VL */
     .ecx = BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14), /* VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ */
     .edx = BIT(2) | BIT(3) | BIT(8)},                     /* 4VNNIW, 4FMAPS, VP2INTERSECT */
    {0x07, 1, .eax = BIT(4) | BIT(23),                     /* AVX-VNNI, AVX-IFMA */
     .edx = BIT(4) | BIT(5) | BIT(10)},                    /* AVX-VNNI-INT8, AVX-NE-CONVERT, AVX-VNNI-INT16 */
    {0x0d, 0, .eax = BIT(5) | BIT(6) | BIT(7)},            /* the state of AVX-512 */
    {0},
};

static int keep_avx512;
static struct sigaction wanted; /* what the program itself wants to happen on SIGSEGV */

static void hide(const Hidden *row, uint32_t leaf, uint32_t subleaf, greg_t *registers) {
    for (; row->leaf; row++) {
        if (row->leaf != leaf || (row->subleaf != subleaf && row->subleaf != ALL)) continue;
        registers[REG_RAX] &= ~row->eax, registers[REG_RBX] &= ~row->ebx;
        registers[REG_RCX] &= ~row->ecx, registers[REG_RDX] &= ~row->edx;
    }
}

static void answer(greg_t *registers) {
    uint32_t leaf = (uint32_t)registers[REG_RAX], subleaf = (uint32_t)registers[REG_RCX], a, b, c, d;
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1);
    __cpuid_count(leaf, subleaf, a, b, c, d);
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
    registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
    hide(BF16_AND_AMX, leaf, subleaf, registers);
    if (!keep_avx512) hide(AVX512, leaf, subleaf, registers);
    registers[REG_RIP] += 2;
}

static int real_sigaction(int number, const struct sigaction *new, struct sigaction *old) {
    static int (*real)(int, const struct sigaction *, struct sigaction *);
    if (!real) real = dlsym(RTLD_NEXT, "sigaction");
    return real(number, new, old);
}

static void on_fault(int number, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    /* SI_KERNEL: a general protection fault, whose instruction can be read. */
    const unsigned char *code = (const unsigned char *)registers[REG_RIP];
    if (info->si_code == SI_KERNEL && code[0] == 0x0f && code[1] == 0xa2) {
        answer(registers);
    } else if (wanted.sa_flags & SA_SIGINFO) {
        wanted.sa_sigaction(number, info, context);
    } else if (wanted.sa_handler != SIG_DFL && wanted.sa_handler != SIG_IGN) {
        wanted.sa_handler(number);
    } else {
        struct sigaction end = {.sa_handler = SIG_DFL};
        real_sigaction(number, &end, NULL);
        raise(number); /* to return would lose a signal of kill(2), and one of the kernel that no instruction caused */
    }
}

/* The program's own handler (Python's faulthandler, gcc's) is kept aside and must not replace this one. */
int sigaction(int number, const struct sigaction *new, struct sigaction *old) {
    if (number != SIGSEGV) return real_sigaction(number, new, old);
    struct sigaction before = wanted;
    if (new) wanted = *new;
    if (old) *old = before;
    return 0;
}

/* glibc's would not call the function above. */
__sighandler_t signal(int number, __sighandler_t handler) {
    struct sigaction new = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;
    sigemptyset(&new.sa_mask);
    return sigaction(number, &new, &old) ? SIG_ERR : old.sa_handler;
}

__attribute__((constructor)) static void start(void) {
    static const char refused[] = "older_cpu: this CPU or kernel cannot make CPUID fault\n";
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    keep_avx512 = getenv("OLDER_CPU_KEEP_AVX512") != 0;
    sigemptyset(&action.sa_mask);
    real_sigaction(SIGSEGV, &action, &wanted);
    if (syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0)) _exit(write(2, refused, sizeof refused - 1) < 0 ? 2 : 1);
}
