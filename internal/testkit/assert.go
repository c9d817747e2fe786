package testkit

// A T is what the checks need of a test: *testing.T, *testing.B, *testing.F, *rapid.T and kin have it.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

// OK ends the test at an error.
func OK(t T, err error) {
	if err != nil {
		t.Helper() // not before: it costs more than what some benchmarks measure
		t.Fatal(err)
	}
}

// Equal fails the test, which goes on, if what it got of a thing is not what it wants.
func Equal[V comparable](t T, what string, got, want V) {
	if got != want {
		t.Helper()
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}
