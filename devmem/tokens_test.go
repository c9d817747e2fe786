package devmem_test

import (
	"fmt"
	"syscall"
	"testing"

	"vnic.dev/vnic/devmem"

	"vnic.dev/vnic/internal/testkit"
)

// tokenConn is a connection that has issued the tokens in known. DontNeed removes them.
type tokenConn struct {
	devmem.Conn
	known map[uint32]bool
	calls int
}

func (c *tokenConn) DontNeed(ranges []devmem.TokenRange) (freed int, err error) {
	c.calls++
	if len(ranges) == 0 || len(ranges) > devmem.MaxTokenRanges {
		return 0, syscall.EINVAL
	}
	looked := 0
	for _, r := range ranges {
		for i := range r.Count {
			if looked++; looked > devmem.MaxFrags {
				return freed, nil
			}
			if c.known[r.Start+i] {
				delete(c.known, r.Start+i)
				freed++
			}
		}
	}
	return freed, nil
}

func TestTokensGoBackWithinTheLimitsOfACall(t *testing.T) {
	for _, c := range []struct {
		name   string
		tokens func(i int) uint32
		n      int
		calls  int
	}{
		{"none", nil, 0, 0},
		{"one", func(int) uint32 { return 7 }, 1, 1},
		{"neighbours", func(i int) uint32 { return uint32(i) }, 1024, 1},
		{"more neighbours than a call takes", func(i int) uint32 { return uint32(i) }, 2500, 3},
		{"single ones", func(i int) uint32 { return uint32(2 * i) }, 300, 3},
		{"pairs", func(i int) uint32 { return uint32(i + i/2) }, 600, 3},
		{"at the top", func(i int) uint32 { return ^uint32(0) - 3 + uint32(i) }, 4, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := &tokenConn{known: map[uint32]bool{}}
			var set devmem.Tokens
			for i := range c.n {
				conn.known[c.tokens(i)] = true
				set.Add(c.tokens(i))
			}
			testkit.Equal(t, "tokens", set.Len(), c.n)
			if err := set.GiveBack(conn); err != nil || len(conn.known) != 0 || conn.calls != c.calls || set.Len() != 0 {
				t.Errorf("%v, %d left, %d calls", err, len(conn.known), conn.calls)
			}
		})
	}
	var set devmem.Tokens
	set.Add(5)
	testkit.ErrorIs(t, set.GiveBack(&tokenConn{}), syscall.EPROTO, "a token that nobody knows")
}

func ExampleTokens() {
	var done devmem.Tokens
	for _, token := range []uint32{3, 4, 5, 9} {
		done.Add(token)
	}
	for ranges := range done.Calls() {
		fmt.Println(ranges)
	}
	// Output: [{3 3} {9 1}]
}
