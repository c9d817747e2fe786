package testkit

// A T is what the checks need of a test: *testing.T, *testing.B, *testing.F, *rapid.T and kin have it.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

// OK ends the test at an error.
func OK(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Must is for a call that gives a value and an error: the function that it returns ends the test at
// the error, else it returns the value. f := testkit.Must(os.Open(name))(t)
func Must[V any](v V, err error) func(T) V {
	return func(t T) V {
		t.Helper()
		OK(t, err)
		return v
	}
}

// Equal fails the test, which goes on, if what it got of a thing is not what it wants.
func Equal[V comparable](t T, what string, got, want V) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}
