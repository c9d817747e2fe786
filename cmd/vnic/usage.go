package main

import "strings"

// isCobraUsage recognises cobra's own complaints about arguments, which carry no type.
func isCobraUsage(err error) bool {
	s := err.Error()
	for _, p := range []string{"unknown command", "accepts ", "requires at least", "if any flags in the group", "unknown flag", "unknown shorthand"} {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}
