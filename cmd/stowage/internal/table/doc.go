// Package table shows storage to people: as a table, as a table that is redrawn
// in place while things change, and as one line per change where there is no
// terminal.
//
// What a provider or a user wrote is shown with its control characters escaped:
// it cannot move the cursor or forge a line.
package table
