//go:build race

package virtq

// raceEnabled is set if the race detector replaces our atomic operations by its own: see index.go.
const raceEnabled = true
