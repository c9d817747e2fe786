package lab

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// FormatBytes writes a number of bytes as the flags take it: 4097, 64K, 512M, 4G.
func FormatBytes(n uint64) string {
	unit := 0
	for n != 0 && n%1024 == 0 && unit < 4 {
		n, unit = n/1024, unit+1
	}
	return fmt.Sprint(n, []string{"", "K", "M", "G", "T"}[unit])
}

// ParseBytes reads a number of bytes: 4096, 64K, 256M, 4G, with or without "iB"; powers of 1024.
func ParseBytes(s string) (uint64, error) {
	t := strings.TrimSuffix(strings.ToUpper(s), "IB")
	shift := uint(0)
	for suffix, sh := range map[string]uint{"K": 10, "M": 20, "G": 30, "T": 40} {
		if strings.HasSuffix(t, suffix) {
			t, shift = strings.TrimSuffix(t, suffix), sh
			break
		}
	}
	n, err := strconv.ParseUint(t, 10, 64)
	if err != nil || n > math.MaxInt64>>shift {
		return 0, errors.New("not a number of bytes, as 4096, 64K, 256M or 4G")
	}
	return n << shift, nil
}

// ParseFraction reads 0 to less than 1: 0.01 or 1%.
func ParseFraction(s string) (float64, error) {
	t, percent := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(t, 64)
	if percent {
		v /= 100
	}
	if err != nil || math.IsNaN(v) || v < 0 || v >= 1 {
		return 0, errors.New("not a part, as 0.01 or 1%, less than 100%")
	}
	return v, nil
}

// FormatFraction writes a part as ParseFraction reads it: 1%.
func FormatFraction(f float64) string { return strconv.FormatFloat(f*100, 'g', 15, 64) + "%" }
