// Package limits has the times after which vnic gives up waiting: for a guest that does not boot, a
// silent peer, a program that does not end. list.go lists them, each with its base: a time that is
// ample on two processors that emulate the guests. A slow machine is not broken, so each limit is
// its base times Slow, one factor for all limits of a process.
//
// Slow is 1, unless a user sets more (--slow or $VNIC_SLOW), a guest takes longer to boot than
// knownBoot (Booted), or QEMU longer to start than knownStart (Started). It never decreases. vnic
// passes it to its guests, and programs in guests read it from their environment.
//
// A limit that a user sets (--timeout, a Config's) is used unchanged, unless it is the default.
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

// Env is the environment variable that has Slow at the start of a process.
const Env = "VNIC_SLOW"

// Max is the largest Slow.
const Max = 1000

// Limit is a time after which vnic gives up waiting; its value is the base.
type Limit time.Duration

// Here returns the limit on this machine: the base times Slow. Call it when the wait begins,
// because Slow may grow.
func (l Limit) Here() time.Duration {
	if d := float64(l) * Slow(); d < math.MaxInt64 {
		return time.Duration(d)
	}
	return math.MaxInt64
}

// Unless returns given if a user has set it, or Here if given equals the default.
func (l Limit) Unless(given time.Duration) time.Duration {
	if given == time.Duration(l) {
		return l.Here()
	}
	return given
}

// slow has the bits of Slow, as a float64.
var slow atomic.Uint64

// fromEnv reads the environment variable, once. It ignores a value that Parse refuses; commands
// report such a value (Check).
var fromEnv = sync.OnceFunc(func() {
	if n, err := Parse(os.Getenv(Env)); err == nil {
		raise(n)
	}
})

// Slow returns how many times slower this machine is than the machines of the bases: 1 to Max.
func Slow() float64 {
	fromEnv()
	return max(1, math.Float64frombits(slow.Load()))
}

// Stretch makes Slow at least n, or Max if n is larger.
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

// Booted records how long a guest took to boot: it makes Slow at least the ratio of d to knownBoot, up to Max.
func Booted(d time.Duration) { Stretch(float64(d) / float64(knownBoot)) }

// Doublings returns how often a time must be doubled to grow at least by the factor Slow, for a protocol
// whose timeouts are powers of two.
func Doublings() int { return int(math.Ceil(math.Log2(Slow()))) }

// Started returns the value of Slow that fits the time that a QEMU took to print its version.
func Started(d time.Duration) float64 { return min(max(1, float64(d)/float64(knownStart)), Max) }

// Environ returns Slow as an entry of the environment of a process in a guest; nil if Slow is 1.
func Environ() []string {
	if n := Slow(); n > 1 {
		return []string{Env + "=" + strconv.FormatFloat(n, 'g', 4, 64)}
	}
	return nil
}

// Parse reads a value of --slow or Env: a number from 1 to Max.
func Parse(s string) (float64, error) {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || !(n >= 1 && n <= Max) {
		return 0, fmt.Errorf("%q: how many times slower, a number from 1 to %d", s, Max)
	}
	return n, nil
}

// Check returns an error if Env has a bad value.
func Check() error {
	s := os.Getenv(Env)
	if _, err := Parse(s); s != "" && err != nil {
		return fmt.Errorf("$%s %w", Env, err)
	}
	return nil
}
