"""How text is made: worlds that ask, retrievers that answer, engines that sample, episodes that training reads."""
