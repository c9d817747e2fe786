//go:build race

package virtq

// raceEnabled is set if the race detector replaces atomic operations: see index.go.
const raceEnabled = true
