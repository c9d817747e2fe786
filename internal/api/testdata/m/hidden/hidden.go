// Package hidden is not API.
package hidden

type T struct{ X int }

func (T) M() {}

type I interface{ M() }

type G[X any] struct{ F X }

type A = int
