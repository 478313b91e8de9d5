package table

import "github.com/stowage-io/stowage/api/user"

// Cells are what a table says of storage by rules of its own, for a page that is no text.
type Cells struct {
	// Size is the size, and the size to grow to if there is one. Status says whether the storage is
	// being removed, too.
	Size   string `json:"size"`
	Status string `json:"status"`
	// Urgency is smaller for storage that more needs the attention of a user: 0 has failed, 1 is tried
	// again, 2 is being worked on, 3 is as it should be.
	Urgency int `json:"urgency"`
}

// CellsOf returns the cells of a storage instance.
func CellsOf(r user.Storage) Cells {
	return Cells{Size: formatSize(r), Status: formatStatus(r), Urgency: urgency(r)}
}
