package boltkv

import "time"

// SetSettleTimeout sets how long a transaction may be unsettled before the store fails.
func (s *Store) SetSettleTimeout(d time.Duration) { s.settleTimeout = d }
