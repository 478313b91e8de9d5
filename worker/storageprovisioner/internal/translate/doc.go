// Package translate translates between the worker's core, which knows facts, operations and
// publications, and its two sides, the state and the sources. [Reader] reads facts from the
// state, [State.Publish] records results in it, and [Operations] carries out batches with a
// source. The types of the state are in apiserver/params, those of sources in storage.
//
// The package decides nothing, and remembers nothing between calls except what one [Reader]
// has looked up. A guard makes all calls of code outside the worker.
package translate
