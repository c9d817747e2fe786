// Package more is API.
package more

import "example.org/m/hidden"

type T struct{ hidden hidden.T }

func (t *T) Use() { t.hidden.M() }
