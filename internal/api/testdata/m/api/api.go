// Package api is API, but its marked lines export types that are not.
package api

import (
	"io"

	"example.org/m/api/more"
	"example.org/m/hidden"
)

var (
	Var     hidden.T                            // offends: Var
	Derived = map[string][]*hidden.T{}          // offends: Derived
	Func    func(chan hidden.T) (x [2]hidden.A) // offends: Func
	Generic hidden.G[int]                       // offends: Generic
	Literal struct {
		F interface{ M(hidden.T) error } // offends: Literal.F.M
	}
	Given = give()
	Fine  *more.T
)

func Takes(x hidden.T, more ...hidden.T) {}                  // offends: Takes
func Gives() (*hidden.T, error)          { return nil, nil } // offends: Gives
func Bound[X hidden.I](x X)              {}                  // offends: Bound

type Alias = hidden.T                 // offends: Alias
type Of = Pair[hidden.T]              // offends: Of
type Defined hidden.T                 // its fields are copied
type Wide interface{ int | hidden.T } // offends: Wide

type Pair[X any] struct{ First, Second X }

type Struct struct {
	Field   hidden.T // offends: Struct.Field
	private hidden.T
	inner
	io.Reader
}

func (s *Struct) Method(func(hidden.T)) {} // offends: Struct.Method
func (s *Struct) private_() hidden.T    { return s.private }

type Embeds struct {
	*hidden.T // offends: Embeds.T
}

type Iface interface {
	io.Reader
	M(hidden.T) // offends: Iface.M
	m(hidden.T)
}

type EmbedsIface interface { // offends: EmbedsIface
	hidden.I
}

// inner is unexported, but importers can use its exported field and method.
type inner struct {
	Promoted hidden.T // offends: Struct.inner.Promoted
}

func (inner) Too() hidden.T { return hidden.T{} } // offends: Struct.inner.Too

type out struct{}

func give() *out { return nil }

func (*out) Reached() hidden.I { return nil } // offends: Given.Reached

type unreached struct{ F hidden.T }

func (unreached) Reached() hidden.T { return hidden.T{} }
