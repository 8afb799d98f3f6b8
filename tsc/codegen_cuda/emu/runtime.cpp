// The emulator as one translation unit: compiled once, linked to every emulated module.
#ifndef TSC_EMU
#error "compile with -DTSC_EMU"
#endif
#include "counters.cpp"
#include "launch.cpp"
#include "matrix.cpp"
#include "memory.cpp"
#include "number.cpp"
#include "race.cpp"
#include "scheduler.cpp"
#include "sync.cpp"
