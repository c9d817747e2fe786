// Package limits has times after which vnic gives up waiting, and a few others that grow alike. list.go
// lists them, each with its base, a time that is ample on two processors that emulate the guests. A slow machine
// is not broken, so each limit is its base times Slow, one factor for the process.
//
// Slow is at least 1 and never decreases: a user can set it (--slow or $VNIC_SLOW), and a slow start of QEMU
// (Started) or a slow boot (Booted) raises it. In a guest, the agent raises it to the host's.
package limits

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Env is the environment variable with which a user sets the first Slow.
const Env = "VNIC_SLOW"

// Max is the largest Slow.
const Max = 1000

// Limit is the base of one of the times that list.go lists.
type Limit time.Duration

// Here returns the limit on this machine: the base times the present Slow, at most the longest time.Duration.
func (l Limit) Here() time.Duration {
	if d := float64(l) * Slow(); d < math.MaxInt64 {
		return time.Duration(d)
	}
	return math.MaxInt64
}

// Unless returns given, or Here if given is the base.
func (l Limit) Unless(given time.Duration) time.Duration {
	if given == time.Duration(l) {
		return l.Here()
	}
	return given
}

var slow atomic.Uint64

// fromEnv raises Slow to the value of Env, once; it ignores a value that Parse refuses.
var fromEnv = sync.OnceFunc(readEnv)

func readEnv() {
	if n, err := Parse(os.Getenv(Env)); err == nil {
		raise(n)
	}
}

// Slow returns how many times slower this machine is than the bases assume: 1 to Max.
func Slow() float64 {
	fromEnv()
	return max(1, math.Float64frombits(slow.Load()))
}

// Stretch makes Slow at least n, up to Max.
func Stretch(n float64) {
	fromEnv()
	raise(min(n, Max))
}

func raise(n float64) {
	for {
		old := slow.Load()
		if n <= math.Float64frombits(old) || slow.CompareAndSwap(old, math.Float64bits(n)) {
			return
		}
	}
}

// Booted makes Slow at least d / knownBoot, up to Max; d is the time that a guest took to boot.
func Booted(d time.Duration) { Stretch(float64(d) / float64(knownBoot)) }

// Doublings returns how often to double a time to grow it at least by the factor Slow.
func Doublings() int { return int(math.Ceil(math.Log2(Slow()))) }

// Started returns the Slow, 1 to Max, that fits the time d which a QEMU took to print its version. It does not set
// Slow.
func Started(d time.Duration) float64 { return min(max(1, float64(d)/float64(knownStart)), Max) }

// Environ returns Slow as an entry of an environment; nil if Slow is 1.
func Environ() []string {
	if n := Slow(); n > 1 {
		return []string{Env + "=" + strconv.FormatFloat(n, 'g', 4, 64)}
	}
	return nil
}

// Parse parses a value of --slow or Env: a number from 1 to Max.
func Parse(s string) (float64, error) {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || !(n >= 1 && n <= Max) {
		return 0, fmt.Errorf("%q: how many times slower, a number from 1 to %d", s, Max)
	}
	return n, nil
}

// Check returns an error if Env has a value that is not empty and that Parse refuses.
func Check() error {
	s := os.Getenv(Env)
	if _, err := Parse(s); s != "" && err != nil {
		return fmt.Errorf("$%s %w", Env, err)
	}
	return nil
}
