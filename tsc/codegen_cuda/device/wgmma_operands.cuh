// Operand lists of wgmma's inline assembly: a statement needs its registers written out, and CUDA C++ cannot compute them.
//   TSC_TEXT_r      the names %0 to %r-1 of the accumulators
//   TSC_BIND_r(c)   their operands d[0] to d[r-1] with constraint c
//   TSC_WGMMA_SIZES(X)   X(N, r, p0 .. p6) for every N: r = N / 2 accumulators, the numbers of the seven operands that follow
#pragma once

#ifndef TSC_EMU

#define TSC_TEXT_4 "%0, %1, %2, %3"
#define TSC_TEXT_8 TSC_TEXT_4 ", %4, %5, %6, %7"
#define TSC_TEXT_12 TSC_TEXT_8 ", %8, %9, %10, %11"
#define TSC_TEXT_16 TSC_TEXT_12 ", %12, %13, %14, %15"
#define TSC_TEXT_20 TSC_TEXT_16 ", %16, %17, %18, %19"
#define TSC_TEXT_24 TSC_TEXT_20 ", %20, %21, %22, %23"
#define TSC_TEXT_28 TSC_TEXT_24 ", %24, %25, %26, %27"
#define TSC_TEXT_32 TSC_TEXT_28 ", %28, %29, %30, %31"
#define TSC_TEXT_36 TSC_TEXT_32 ", %32, %33, %34, %35"
#define TSC_TEXT_40 TSC_TEXT_36 ", %36, %37, %38, %39"
#define TSC_TEXT_44 TSC_TEXT_40 ", %40, %41, %42, %43"
#define TSC_TEXT_48 TSC_TEXT_44 ", %44, %45, %46, %47"
#define TSC_TEXT_52 TSC_TEXT_48 ", %48, %49, %50, %51"
#define TSC_TEXT_56 TSC_TEXT_52 ", %52, %53, %54, %55"
#define TSC_TEXT_60 TSC_TEXT_56 ", %56, %57, %58, %59"
#define TSC_TEXT_64 TSC_TEXT_60 ", %60, %61, %62, %63"
#define TSC_TEXT_68 TSC_TEXT_64 ", %64, %65, %66, %67"
#define TSC_TEXT_72 TSC_TEXT_68 ", %68, %69, %70, %71"
#define TSC_TEXT_76 TSC_TEXT_72 ", %72, %73, %74, %75"
#define TSC_TEXT_80 TSC_TEXT_76 ", %76, %77, %78, %79"
#define TSC_TEXT_84 TSC_TEXT_80 ", %80, %81, %82, %83"
#define TSC_TEXT_88 TSC_TEXT_84 ", %84, %85, %86, %87"
#define TSC_TEXT_92 TSC_TEXT_88 ", %88, %89, %90, %91"
#define TSC_TEXT_96 TSC_TEXT_92 ", %92, %93, %94, %95"
#define TSC_TEXT_100 TSC_TEXT_96 ", %96, %97, %98, %99"
#define TSC_TEXT_104 TSC_TEXT_100 ", %100, %101, %102, %103"
#define TSC_TEXT_108 TSC_TEXT_104 ", %104, %105, %106, %107"
#define TSC_TEXT_112 TSC_TEXT_108 ", %108, %109, %110, %111"
#define TSC_TEXT_116 TSC_TEXT_112 ", %112, %113, %114, %115"
#define TSC_TEXT_120 TSC_TEXT_116 ", %116, %117, %118, %119"
#define TSC_TEXT_124 TSC_TEXT_120 ", %120, %121, %122, %123"
#define TSC_TEXT_128 TSC_TEXT_124 ", %124, %125, %126, %127"

#define TSC_BIND_4(c) c(d[0]), c(d[1]), c(d[2]), c(d[3])
#define TSC_BIND_8(c) TSC_BIND_4(c), c(d[4]), c(d[5]), c(d[6]), c(d[7])
#define TSC_BIND_12(c) TSC_BIND_8(c), c(d[8]), c(d[9]), c(d[10]), c(d[11])
#define TSC_BIND_16(c) TSC_BIND_12(c), c(d[12]), c(d[13]), c(d[14]), c(d[15])
#define TSC_BIND_20(c) TSC_BIND_16(c), c(d[16]), c(d[17]), c(d[18]), c(d[19])
#define TSC_BIND_24(c) TSC_BIND_20(c), c(d[20]), c(d[21]), c(d[22]), c(d[23])
#define TSC_BIND_28(c) TSC_BIND_24(c), c(d[24]), c(d[25]), c(d[26]), c(d[27])
#define TSC_BIND_32(c) TSC_BIND_28(c), c(d[28]), c(d[29]), c(d[30]), c(d[31])
#define TSC_BIND_36(c) TSC_BIND_32(c), c(d[32]), c(d[33]), c(d[34]), c(d[35])
#define TSC_BIND_40(c) TSC_BIND_36(c), c(d[36]), c(d[37]), c(d[38]), c(d[39])
#define TSC_BIND_44(c) TSC_BIND_40(c), c(d[40]), c(d[41]), c(d[42]), c(d[43])
#define TSC_BIND_48(c) TSC_BIND_44(c), c(d[44]), c(d[45]), c(d[46]), c(d[47])
#define TSC_BIND_52(c) TSC_BIND_48(c), c(d[48]), c(d[49]), c(d[50]), c(d[51])
#define TSC_BIND_56(c) TSC_BIND_52(c), c(d[52]), c(d[53]), c(d[54]), c(d[55])
#define TSC_BIND_60(c) TSC_BIND_56(c), c(d[56]), c(d[57]), c(d[58]), c(d[59])
#define TSC_BIND_64(c) TSC_BIND_60(c), c(d[60]), c(d[61]), c(d[62]), c(d[63])
#define TSC_BIND_68(c) TSC_BIND_64(c), c(d[64]), c(d[65]), c(d[66]), c(d[67])
#define TSC_BIND_72(c) TSC_BIND_68(c), c(d[68]), c(d[69]), c(d[70]), c(d[71])
#define TSC_BIND_76(c) TSC_BIND_72(c), c(d[72]), c(d[73]), c(d[74]), c(d[75])
#define TSC_BIND_80(c) TSC_BIND_76(c), c(d[76]), c(d[77]), c(d[78]), c(d[79])
#define TSC_BIND_84(c) TSC_BIND_80(c), c(d[80]), c(d[81]), c(d[82]), c(d[83])
#define TSC_BIND_88(c) TSC_BIND_84(c), c(d[84]), c(d[85]), c(d[86]), c(d[87])
#define TSC_BIND_92(c) TSC_BIND_88(c), c(d[88]), c(d[89]), c(d[90]), c(d[91])
#define TSC_BIND_96(c) TSC_BIND_92(c), c(d[92]), c(d[93]), c(d[94]), c(d[95])
#define TSC_BIND_100(c) TSC_BIND_96(c), c(d[96]), c(d[97]), c(d[98]), c(d[99])
#define TSC_BIND_104(c) TSC_BIND_100(c), c(d[100]), c(d[101]), c(d[102]), c(d[103])
#define TSC_BIND_108(c) TSC_BIND_104(c), c(d[104]), c(d[105]), c(d[106]), c(d[107])
#define TSC_BIND_112(c) TSC_BIND_108(c), c(d[108]), c(d[109]), c(d[110]), c(d[111])
#define TSC_BIND_116(c) TSC_BIND_112(c), c(d[112]), c(d[113]), c(d[114]), c(d[115])
#define TSC_BIND_120(c) TSC_BIND_116(c), c(d[116]), c(d[117]), c(d[118]), c(d[119])
#define TSC_BIND_124(c) TSC_BIND_120(c), c(d[120]), c(d[121]), c(d[122]), c(d[123])
#define TSC_BIND_128(c) TSC_BIND_124(c), c(d[124]), c(d[125]), c(d[126]), c(d[127])

#define TSC_WGMMA_SIZES(X) \
  X(8, 4, "4", "5", "6", "7", "8", "9", "10") \
  X(16, 8, "8", "9", "10", "11", "12", "13", "14") \
  X(24, 12, "12", "13", "14", "15", "16", "17", "18") \
  X(32, 16, "16", "17", "18", "19", "20", "21", "22") \
  X(40, 20, "20", "21", "22", "23", "24", "25", "26") \
  X(48, 24, "24", "25", "26", "27", "28", "29", "30") \
  X(56, 28, "28", "29", "30", "31", "32", "33", "34") \
  X(64, 32, "32", "33", "34", "35", "36", "37", "38") \
  X(72, 36, "36", "37", "38", "39", "40", "41", "42") \
  X(80, 40, "40", "41", "42", "43", "44", "45", "46") \
  X(88, 44, "44", "45", "46", "47", "48", "49", "50") \
  X(96, 48, "48", "49", "50", "51", "52", "53", "54") \
  X(104, 52, "52", "53", "54", "55", "56", "57", "58") \
  X(112, 56, "56", "57", "58", "59", "60", "61", "62") \
  X(120, 60, "60", "61", "62", "63", "64", "65", "66") \
  X(128, 64, "64", "65", "66", "67", "68", "69", "70") \
  X(136, 68, "68", "69", "70", "71", "72", "73", "74") \
  X(144, 72, "72", "73", "74", "75", "76", "77", "78") \
  X(152, 76, "76", "77", "78", "79", "80", "81", "82") \
  X(160, 80, "80", "81", "82", "83", "84", "85", "86") \
  X(168, 84, "84", "85", "86", "87", "88", "89", "90") \
  X(176, 88, "88", "89", "90", "91", "92", "93", "94") \
  X(184, 92, "92", "93", "94", "95", "96", "97", "98") \
  X(192, 96, "96", "97", "98", "99", "100", "101", "102") \
  X(200, 100, "100", "101", "102", "103", "104", "105", "106") \
  X(208, 104, "104", "105", "106", "107", "108", "109", "110") \
  X(216, 108, "108", "109", "110", "111", "112", "113", "114") \
  X(224, 112, "112", "113", "114", "115", "116", "117", "118") \
  X(232, 116, "116", "117", "118", "119", "120", "121", "122") \
  X(240, 120, "120", "121", "122", "123", "124", "125", "126") \
  X(248, 124, "124", "125", "126", "127", "128", "129", "130") \
  X(256, 128, "128", "129", "130", "131", "132", "133", "134")

#endif
