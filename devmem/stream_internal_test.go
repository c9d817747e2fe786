package devmem

import (
	"testing"
)

// halves is a connection whose first RecvDevmem returns one byte, and each later one two bytes, in host memory.
type halves struct {
	Conn
	begun bool
}

func (c *halves) RecvDevmem(_ []Frag, linear []byte, _ RecvFlags) (n, nfrags, nlinear int, err error) {
	n = 2
	if !c.begun {
		n, c.begun = 1, true
	}
	return n, 0, n, nil
}

// A Stream's list of pieces does not grow if the Stream always has a byte left.
func TestStreamThatIsNeverEmpty(t *testing.T) {
	s := NewStream(&halves{}, nil, nil)
	if err := s.Fill(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if err := s.Fill(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		if err := s.Skip(2); err != nil {
			t.Fatal(err)
		}
		if s.Len() != 1 {
			t.Fatalf("%d bytes are left", s.Len())
		}
	}
	if cap(s.pieces) > 16 {
		t.Errorf("%d descriptions of pieces for one byte", cap(s.pieces))
	}
}
