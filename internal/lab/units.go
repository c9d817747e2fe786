package lab

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// FormatBytes formats a number of bytes as ParseBytes reads it: 4097, 64K, 512M, 4G, 1T.
func FormatBytes(n uint64) string {
	unit := 0
	for n != 0 && n%1024 == 0 && unit < 4 {
		n, unit = n/1024, unit+1
	}
	return fmt.Sprint(n, []string{"", "K", "M", "G", "T"}[unit])
}

// ShowBytes formats a number of bytes for people: as FormatBytes below 1024, and for a multiple of 1024 if FormatBytes
// returns at most 5 characters; else rounded up to one decimal: 10.2M.
func ShowBytes(n uint64) string {
	s := FormatBytes(n)
	if n < 1024 || n%1024 == 0 && len(s) <= len("1023K") {
		return s
	}
	unit, size := "KMGT", uint64(1024)
	for len(unit) > 1 && n/size >= 1024 {
		unit, size = unit[1:], size*1024
	}
	return fmt.Sprintf("%.1f%c", math.Ceil(float64(n)*10/float64(size))/10, unit[0])
}

// ParseBytes parses a number of bytes: 4096, 64K, 256M, 4G, 1T, in either case, with or without "iB".
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

// ParseFraction parses a number from 0 to less than 1, as 0.01 or 1%.
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

// FormatFraction formats a fraction as ParseFraction reads it: 1%.
func FormatFraction(f float64) string { return strconv.FormatFloat(f*100, 'g', 15, 64) + "%" }

// ParseTime parses a time from 0 to most, as 10us or 2s.
func ParseTime(s string, most time.Duration) (time.Duration, error) {
	if s == "0" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > most {
		return 0, fmt.Errorf("a time, as 10us, 5ms or 2s: %s at most", strings.TrimSuffix(most.String(), "0m0s"))
	}
	return d, nil
}

// Bounds of a rate, in bytes a second.
const (
	minRate = 125
	maxRate = 1e15
)

var rateUnits = []struct {
	word  string
	bytes float64
}{{"kbit", 1e3 / 8}, {"mbit", 1e6 / 8}, {"gbit", 1e9 / 8}, {"tbit", 1e12 / 8}, {"kb/s", 1e3}, {"mb/s", 1e6},
	{"gb/s", 1e9}, {"tb/s", 1e12}}

// ParseRate parses a rate, as 100Gbit, 100Gbit/s or 300GB/s, and returns bytes a second.
func ParseRate(s string) (float64, error) {
	t := strings.TrimSuffix(strings.ToLower(s), "bit/s")
	if len(t) < len(s) {
		t += "bit"
	}
	for _, u := range rateUnits {
		if number, ok := strings.CutSuffix(t, u.word); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
			if err != nil {
				break
			}
			if v *= u.bytes; !(v >= minRate && v <= maxRate) {
				return 0, errors.New("1kbit to 8000Tbit, or as many bytes")
			}
			return v, nil
		}
	}
	return 0, errors.New("not a rate, as 100Gbit or 300GB/s")
}

// FormatBitRate formats a rate in bytes a second, as 200Gbit.
func FormatBitRate(r float64) string { return formatRate(r, 0) }

// FormatByteRate formats a rate in bytes a second, as 300GB/s.
func FormatByteRate(r float64) string { return formatRate(r, len(rateUnits)/2) }

func formatRate(r float64, first int) string {
	words := []string{"kbit", "Mbit", "Gbit", "Tbit", "kB/s", "MB/s", "GB/s", "TB/s"}
	i := first
	for i%4 < 3 && r >= rateUnits[i+1].bytes {
		i++
	}
	return strconv.FormatFloat(r/rateUnits[i].bytes, 'g', 12, 64) + words[i]
}

// ParseScale parses a scale: 1 to MaxScale.
func ParseScale(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= 1 && v <= MaxScale) {
		return 0, fmt.Errorf("1 to %d", MaxScale)
	}
	return v, nil
}

// MaxScale is the maximum of ParseScale.
const MaxScale = 1_000_000
