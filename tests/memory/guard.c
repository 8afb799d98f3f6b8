/* What a guarded run needs in C: where a fault was, and which floating-point flags a kernel raised. */
#define _GNU_SOURCE
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static int64_t *report; /* two words of shared memory: the signal, and the address it was for */
static char stack[1 << 16];

static void note(int number, siginfo_t *info, void *context) {
  (void)context;
  report[1] = (int64_t)(intptr_t)info->si_addr;
  report[0] = number;
  _exit(1);
}

void guard_install(int64_t *shared) {
  static const int numbers[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
  stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
  struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  report = shared;
  sigaltstack(&other, NULL);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i) sigaction(numbers[i], &action, NULL);
}

/* Leave a pattern on the stack where the locals of the next call will be. */
static __attribute__((noinline)) void paint(int64_t pattern) {
  volatile int64_t below[1 << 15];
  for (size_t i = 0; i < sizeof below / sizeof *below; ++i) below[i] = pattern;
}

/* Run some blocks of a kernel, with the pattern in its locals. Its status comes back, and in `flags` what of invalid (1) and
   denormal (2) operands it had. */
int32_t guard_call(int32_t (*kernel)(const void *, int64_t, int64_t, void *), const void *args, int64_t begin, int64_t end,
                   void *scratch, int64_t pattern, int64_t *flags) {
  paint(pattern);
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() & ~0x3fu);
#endif
  int32_t status = kernel(args, begin, end, scratch);
#if defined(__x86_64__)
  *flags |= _mm_getcsr() & 3;
#endif
  return status;
}
