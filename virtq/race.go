//go:build race

package virtq

// raceEnabled says that the race detector stands between our atomic operations and the memory: see index.go.
const raceEnabled = true
