// Package limits has the times after which vnic gives something up: a guest that does not boot, a peer that is silent,
// a program that does not end. list.go lists them, each with its base: what is ample on two processors that emulate the
// guests. A slow machine is slow and not broken, so what is waited for is the base times Slow, one value for all limits
// of a process.
//
// Slow is 1, unless a user says more (Stretch, by --slow or $VNIC_SLOW), or a guest needs longer to boot than the known
// one did (Booted). It never sinks. vnic tells its guests, and programs in guests take it from their environment.
//
// A limit that a user gives (--timeout, a Config's) is taken as it is, unless it is the default.
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

// Env is the environment's variable that has Slow at the start of a process.
const Env = "VNIC_SLOW"

// Max is the largest Slow.
const Max = 1000

// A Limit is a time after which something is given up; its value is its base.
type Limit time.Duration

// Here is the limit on this machine: the base times Slow. It is asked for when the wait begins, as Slow may grow.
func (l Limit) Here() time.Duration {
	if d := float64(l) * Slow(); d < math.MaxInt64 {
		return time.Duration(d)
	}
	return math.MaxInt64
}

// Unless is a time that a user may give where the limit is the default: the limit here, unless another one was given.
func (l Limit) Unless(given time.Duration) time.Duration {
	if given == time.Duration(l) {
		return l.Here()
	}
	return given
}

// slow has the bits of Slow, as a float64.
var slow atomic.Uint64

// fromEnv takes the environment's value, once. What is no number is none: commands say so (Check).
var fromEnv = sync.OnceFunc(func() {
	if n, err := Parse(os.Getenv(Env)); err == nil {
		raise(n)
	}
})

// Slow is how many times slower than the machines of the bases this one is taken to be: 1 to Max.
func Slow() float64 {
	fromEnv()
	return max(1, math.Float64frombits(slow.Load()))
}

// Stretch makes Slow at least n.
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

// Booted tells how long a guest has taken to boot: where that was longer than it is for the known one, all limits
// follow.
func Booted(d time.Duration) { Stretch(float64(d) / float64(knownBoot)) }

// Doublings is how often a time has to be doubled to be as much longer, at least, as limits are: for a protocol that
// has powers of two.
func Doublings() int { return int(math.Ceil(math.Log2(Slow()))) }

// Started is what Slow would be by the time that a QEMU took to say its version.
func Started(d time.Duration) float64 { return min(max(1, float64(d)/float64(knownStart)), Max) }

// Environ is Slow as the environment of a process has it, for one in a guest; nothing where it is 1.
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

// Check says what is wrong with Env's value.
func Check() error {
	s, there := os.LookupEnv(Env)
	if !there || s == "" {
		return nil
	}
	if _, err := Parse(s); err != nil {
		return fmt.Errorf("$%s %w", Env, err)
	}
	return nil
}
